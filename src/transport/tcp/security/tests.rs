//! Who gets in, who does not, and what both are told.

#![cfg(test)]

use super::exchange::{MAGIC, VERSION, transcript};
use super::*;
use crate::ids::Worker;
use ring::hmac;
use std::path::Path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const PATIENCE: Duration = Duration::from_secs(20);
const IMPATIENCE: Duration = Duration::from_millis(50);
const COORDINATOR: Role = Role::Coordinator;

fn plain(token: &Token) -> Security {
    Security::Plain { token: token.clone() }
}

fn tls(dir: &Path, name: &str) -> Security {
    Security::Tls { keys: Keys::read(dir, name).unwrap(), token: None }
}

fn keys() -> TempDir {
    let dir = TempDir::new().unwrap();
    keygen(dir.path(), 2, false).unwrap();
    dir
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

type Ends = (Result<(Stream, Option<Role>), SecurityError>, Result<Stream, SecurityError>);

/// What the server and the client make of each other.
fn meet(server: &Security, client: &Security, expected: Role) -> Ends {
    let (near, far) = duplex(1 << 14);
    wait(async {
        tokio::join!(accept(near, server, PATIENCE), connect(far, expected, client, PATIENCE))
    })
}

fn fails((server, client): Ends) -> (SecurityError, SecurityError) {
    (server.err().unwrap(), client.err().unwrap())
}

/// What a server makes of a caller that sends `bytes`; whether it hangs up afterwards is up to
/// `stays`.
fn served(bytes: &[u8], stays: bool, security: &Security) -> SecurityError {
    wait(async {
        let (near, mut far) = duplex(1 << 14);
        far.write_all(bytes).await.unwrap();
        let far = stays.then_some(far);
        let refused = accept(near, security, IMPATIENCE).await.err().unwrap();
        drop(far);
        refused
    })
}

/// Both have let each other in: the client's role.
fn talk((server, client): Ends) -> Option<Role> {
    let ((mut server, role), mut client) = (server.unwrap(), client.unwrap());
    wait(async {
        let mut bytes = [0; 4];
        server.write_all(b"work").await.unwrap();
        server.flush().await.unwrap();
        client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"work");
        client.write_all(b"done").await.unwrap();
        client.flush().await.unwrap();
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"done");
    });
    role
}

fn greeting(nonce: [u8; 32]) -> Vec<u8> {
    [&MAGIC, &VERSION.to_le_bytes()[..], &nonce].concat()
}

async fn answer(far: &mut DuplexStream) -> [u8; 66] {
    let mut answer = [0; 66];
    far.read_exact(&mut answer).await.unwrap();
    answer
}

#[test]
fn who_knows_the_token_gets_in() {
    let security = plain(&Token::fresh().unwrap());
    assert_eq!(talk(meet(&security, &security, COORDINATOR)), None);
}

#[test]
fn the_documented_bytes_are_enough() {
    let token = Token::parse(&"0b".repeat(32)).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[0x0b; 32]);
    wait(async {
        let (near, mut far) = duplex(1 << 14);
        let client = async {
            far.write_all(&[&b"CGRAD\0\x01\0"[..], &[7; 32]].concat()).await.unwrap();
            let answer = answer(&mut far).await;
            assert_eq!(&answer[..2], b"\x01\0");
            let transcript = [b"\x01\0", &[7; 32][..], &answer[2..34]].concat();
            hmac::verify(&key, &[b"codedgrad server", &transcript[..]].concat(), &answer[34..])
                .unwrap();
            let proof = hmac::sign(&key, &[b"codedgrad client", &transcript[..]].concat());
            far.write_all(proof.as_ref()).await.unwrap();
            assert_eq!(far.read_u8().await.unwrap(), 1);
        };
        let security = plain(&token);
        let (accepted, ()) = tokio::join!(accept(near, &security, PATIENCE), client);
        accepted.map(drop).unwrap();
    });
}

#[test]
fn a_wrong_token_is_refused_by_both_sides() {
    let (here, there) = (plain(&Token::fresh().unwrap()), plain(&Token::fresh().unwrap()));
    let (server, client) = fails(meet(&here, &there, COORDINATOR));
    assert!(matches!(client, SecurityError::WrongToken { from: Side::Server }), "{client}");
    assert!(
        matches!(server, SecurityError::Closed { from: Side::Client, missing: "its proof" }),
        "{server}"
    );
    // A client that does not care who it talks to.
    let oversized = [greeting([1; 32]), vec![0; 10_000]].concat();
    let server = served(&oversized, true, &here);
    assert!(matches!(server, SecurityError::WrongToken { from: Side::Client }), "{server}");
}

/// Runs a whole exchange with the server and returns the client's half of it.
fn overheard(security: &Security) -> Vec<u8> {
    let Security::Plain { token } = security else { panic!("plain connections can be overheard") };
    wait(async {
        let (near, mut far) = duplex(1 << 14);
        let client = async {
            far.write_all(&greeting([3; 32])).await.unwrap();
            let nonce = answer(&mut far).await[2..34].try_into().unwrap();
            let proof = hmac::sign(&token.key(), &transcript(Side::Client, &[3; 32], &nonce));
            far.write_all(proof.as_ref()).await.unwrap();
            assert_eq!(far.read_u8().await.unwrap(), 1);
            [&greeting([3; 32]), proof.as_ref()].concat()
        };
        let (accepted, sent) = tokio::join!(accept(near, security, PATIENCE), client);
        accepted.map(drop).unwrap();
        sent
    })
}

#[test]
fn what_was_overheard_is_worth_nothing() {
    let security = plain(&Token::fresh().unwrap());
    let server = served(&overheard(&security), true, &security);
    assert!(matches!(server, SecurityError::WrongToken { from: Side::Client }), "{server}");
}

#[test]
fn a_side_is_not_fooled_by_its_own_messages() {
    let security = plain(&Token::fresh().unwrap());
    wait(async {
        // The server's nonce and proof come back to it as the client's.
        let (near, mut far) = duplex(1 << 14);
        let client = async {
            far.write_all(&greeting([5; 32])).await.unwrap();
            let answer = answer(&mut far).await;
            far.write_all(&answer[34..]).await.unwrap();
        };
        let (server, ()) = tokio::join!(accept(near, &security, PATIENCE), client);
        assert!(matches!(server.err().unwrap(), SecurityError::WrongToken { .. }));
        // The client's nonce comes back to it, with the proof that another client gave for the
        // same two nonces.
        let (near, mut far) = duplex(1 << 14);
        let server = async {
            let mut greeting = [0; 40];
            far.read_exact(&mut greeting).await.unwrap();
            let nonce = greeting[8..].try_into().unwrap();
            let proof = hmac::sign(&security.key(), &transcript(Side::Client, nonce, nonce));
            far.write_all(&[&greeting[6..], proof.as_ref()].concat()).await.unwrap();
        };
        let (client, ()) = tokio::join!(connect(near, COORDINATOR, &security, PATIENCE), server);
        assert!(matches!(client.err().unwrap(), SecurityError::WrongToken { .. }));
        // And simply everything comes back.
        let (near, far) = duplex(1 << 14);
        let echo = async {
            let (mut read, mut write) = tokio::io::split(far);
            drop(tokio::io::copy(&mut read, &mut write).await);
        };
        let (client, ()) = tokio::join!(connect(near, COORDINATOR, &security, IMPATIENCE), echo);
        let error = client.err().unwrap();
        assert!(matches!(&error, SecurityError::NotOurs { first, .. } if first == "CG"), "{error}");
    });
}

#[test]
fn garbage_is_refused_and_shown() {
    let security = plain(&Token::fresh().unwrap());
    let error = served(b"GET / HTTP/1.1\r\n\r\n", true, &security);
    assert_eq!(error.to_string(), "the client does not talk codedgrad; it began with \"GET / \"");
    let error = served(&[b"\xff\0\"\n", &[0; 9000][..]].concat(), true, &security);
    assert!(error.to_string().ends_with(r#"it began with "\xff\x00\"\n\x00\x00""#), "{error}");
    let error = served(b"CGRAD\0\x02\0", true, &security);
    assert!(
        matches!(error, SecurityError::Version { from: Side::Client, theirs: 2, ours: 1 }),
        "{error}"
    );
}

#[test]
fn half_an_exchange_ends_in_time() {
    let dir = keys();
    let security = plain(&Token::fresh().unwrap());
    let whole = overheard(&security);
    for length in [0, 1, 5, 6, 7, 8, 39, 40, 71] {
        let error = served(&whole[..length], false, &security);
        assert!(
            matches!(error, SecurityError::Closed { from: Side::Client, .. }),
            "{length} bytes: {error}"
        );
        let error = served(&whole[..length], true, &security);
        assert!(
            matches!(error, SecurityError::TooSlow { from: Side::Client, patience: IMPATIENCE }),
            "{length} bytes: {error}"
        );
    }
    let error = served(b"\x16\x03\x01", true, &tls(dir.path(), "coordinator"));
    assert!(matches!(error, SecurityError::TooSlow { .. }), "{error}");
    // Steady drops do not win time, and a silent server is left.
    wait(async {
        let (near, mut far) = duplex(1 << 14);
        let dripping = async {
            for byte in &whole {
                tokio::time::sleep(IMPATIENCE / 4).await;
                if far.write_all(&[*byte]).await.is_err() {
                    break;
                }
            }
        };
        let (server, ()) = tokio::join!(accept(near, &security, IMPATIENCE), dripping);
        assert!(matches!(server.err().unwrap(), SecurityError::TooSlow { from: Side::Client, .. }));
        let (near, _far) = duplex(1 << 14);
        let client = connect(near, COORDINATOR, &security, IMPATIENCE).await;
        assert!(matches!(client.err().unwrap(), SecurityError::TooSlow { from: Side::Server, .. }));
    });
}

#[test]
fn certificates_say_who_is_who() {
    let dir = keys();
    let (coordinator, worker) = (tls(dir.path(), "coordinator"), tls(dir.path(), "worker-1"));
    let role = Some(Role::Worker(Worker(1)));
    assert_eq!(talk(meet(&coordinator, &worker, COORDINATOR)), role);
    let other = tls(dir.path(), "worker-0");
    assert_eq!(talk(meet(&other, &worker, Role::Worker(Worker(0)))), role);
}

#[test]
fn a_token_counts_with_tls_too() {
    let dir = keys();
    let token = Token::read(&dir.path().join("token")).unwrap();
    let with = |name| Security::Tls {
        keys: Keys::read(dir.path(), name).unwrap(),
        token: Some(token.clone()),
    };
    talk(meet(&with("coordinator"), &with("worker-0"), COORDINATOR));
    let (_, client) = fails(meet(&with("coordinator"), &tls(dir.path(), "worker-0"), COORDINATOR));
    assert!(matches!(client, SecurityError::WrongToken { from: Side::Server }), "{client}");
}

#[test]
fn strangers_are_refused() {
    let (ours, theirs) = (keys(), keys());
    let coordinator = tls(ours.path(), "coordinator");
    // The client refuses first.
    let (server, client) = fails(meet(&coordinator, &tls(theirs.path(), "worker-0"), COORDINATOR));
    assert!(matches!(client, SecurityError::Certificate { from: Side::Server, .. }), "{client}");
    assert!(matches!(server, SecurityError::Tls { from: Side::Client, .. }), "{server}");
    // A client that trusts the server, and is not trusted.
    let stranger = Keys::files(
        &ours.path().join("ca.pem"),
        &theirs.path().join("worker-0.pem"),
        &theirs.path().join("worker-0.key"),
    );
    let stranger = Security::Tls { keys: stranger.unwrap(), token: None };
    let (server, client) = fails(meet(&coordinator, &stranger, COORDINATOR));
    assert!(matches!(server, SecurityError::Certificate { from: Side::Client, .. }), "{server}");
    assert!(matches!(client, SecurityError::Tls { from: Side::Server, .. }), "{client}");
}

#[test]
fn a_worker_is_no_coordinator() {
    let dir = keys();
    let (worker, other) = (tls(dir.path(), "worker-0"), tls(dir.path(), "worker-1"));
    for expected in [COORDINATOR, Role::Worker(Worker(1))] {
        let (_, client) = fails(meet(&worker, &other, expected));
        assert!(
            matches!(client, SecurityError::Certificate { from: Side::Server, .. }),
            "{client}"
        );
        assert!(client.to_string().contains("worker-0.codedgrad"), "{client}");
    }
}

#[test]
fn plain_and_tls_do_not_mix() {
    let dir = keys();
    let (coordinator, worker) = (tls(dir.path(), "coordinator"), tls(dir.path(), "worker-0"));
    let plain = plain(&Token::fresh().unwrap());
    let (server, client) = fails(meet(&coordinator, &plain, COORDINATOR));
    assert!(matches!(server, SecurityError::NoTls { from: Side::Client }), "{server}");
    assert!(server.to_string().contains("use `Security::Tls` on both sides"), "{server}");
    assert!(matches!(client, SecurityError::UnexpectedTls { from: Side::Server }), "{client}");
    let (server, client) = fails(meet(&plain, &worker, COORDINATOR));
    assert!(matches!(server, SecurityError::UnexpectedTls { from: Side::Client }), "{server}");
    assert!(matches!(client, SecurityError::Closed { from: Side::Server, .. }), "{client}");
}

#[test]
fn plain_connections_stay_on_the_host() {
    let dir = keys();
    let (plain, tls) = (plain(&Token::fresh().unwrap()), tls(dir.path(), "coordinator"));
    for address in ["127.0.0.1:7000", "127.3.2.1:7000", "[::1]:7000", "[::ffff:127.0.0.1]:7000"] {
        check_address(address.parse().unwrap(), &plain).unwrap();
    }
    for address in ["0.0.0.0:7000", "[::]:7000", "10.0.0.1:7000", "[::ffff:10.0.0.1]:7000"] {
        let error = check_address(address.parse().unwrap(), &plain).unwrap_err().to_string();
        assert!(
            error.ends_with("the coordinator and every worker need `Security::Tls`"),
            "{error}"
        );
        check_address(address.parse().unwrap(), &tls).unwrap();
    }
}

#[test]
fn a_token_is_64_digits_and_never_shown() {
    let token = Token::parse(&format!(" {}\n", "aB".repeat(32))).unwrap();
    assert_eq!(token.text(), format!("{}\n", "ab".repeat(32)));
    assert_eq!(format!("{:?}", plain(&token)), "Plain { token: Token(..) }");
    assert_ne!(Token::fresh().unwrap().text(), Token::fresh().unwrap().text());
    for text in ["", "ab", &"g".repeat(64), &"a".repeat(65), &"+a".repeat(32), &"é".repeat(32)] {
        let error = Token::parse(text).unwrap_err();
        assert!(matches!(error, SecurityError::NoToken { digits: 64, .. }), "{error}");
    }
}

#[test]
fn keygen_overwrites_nothing() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("worker-1.pem"), "mine").unwrap();
    let error = keygen(dir.path(), 2, true).unwrap_err();
    assert!(
        matches!(&error, SecurityError::Exists { path } if path.ends_with("worker-1.pem")),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let written = keygen(&dir.path().join("new/keys"), 2, true).unwrap();
    assert_eq!(written.len(), 9);
    assert!(written.iter().all(|path| path.is_file()));
    assert!(!keys().path().join("ca.key").exists());
    let error = Token::fresh().unwrap().write(&dir.path().join("worker-1.pem")).unwrap_err();
    assert!(matches!(error, SecurityError::Exists { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn secrets_are_for_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    for path in keygen(dir.path(), 1, true).unwrap() {
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        let secret = path.extension().is_none_or(|extension| extension == "key");
        assert_eq!(secret, mode == 0o600, "{} has mode {mode:o}", path.display());
    }
    for name in ["token", "worker-0.key"] {
        std::fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(0o640)).unwrap();
    }
    let error = Token::read(&dir.path().join("token")).unwrap_err();
    assert!(
        matches!(error, SecurityError::Readable { mode: 0o640, .. })
            && error.to_string().contains("640"),
        "{error}"
    );
    let error = Keys::read(dir.path(), "worker-0").unwrap_err();
    assert!(matches!(error, SecurityError::Readable { .. }), "{error}");
}

#[test]
fn keys_that_do_not_fit_are_named() {
    let dir = keys();
    let path = |name| dir.path().join(name);
    assert_eq!(Keys::read(dir.path(), "worker-1").unwrap().role(), Role::Worker(Worker(1)));
    let error = Keys::read(dir.path(), "worker-7").unwrap_err();
    assert!(
        matches!(error, SecurityError::File { .. }) && error.to_string().contains("worker-7.pem"),
        "{error}"
    );
    let error =
        Keys::files(&path("ca.pem"), &path("worker-0.pem"), &path("worker-1.key")).unwrap_err();
    assert!(matches!(error, SecurityError::Unusable { .. }), "{error}");
    let error = Keys::files(&path("ca.pem"), &path("ca.pem"), &path("worker-1.key")).unwrap_err();
    assert!(matches!(error, SecurityError::OwnRole { count: 0, .. }), "{error}");
    let error =
        Keys::files(&path("token"), &path("worker-0.pem"), &path("worker-0.key")).unwrap_err();
    assert!(matches!(error, SecurityError::Pem { what: "certificate", .. }), "{error}");
}

#[test]
fn only_whole_names_are_roles() {
    assert_eq!(Role::from_label("worker-10"), Some(Role::Worker(Worker(10))));
    for label in [
        "",
        "worker",
        "worker-",
        "worker-+1",
        "worker-01",
        "xcoordinator",
        "worker-4294967296",
        "Coordinator",
    ] {
        assert_eq!(Role::from_label(label), None, "{label}");
    }
}

/// Enters a gate from hosts of these numbers, and says which of them have lost their places.
fn lose(places: usize, hosts: &[u8]) -> Vec<usize> {
    let gate = HandshakeGate::new(places);
    let passes: Vec<Pass> = hosts.iter().map(|host| gate.enter([10, 0, 0, *host].into())).collect();
    (0..hosts.len()).filter(|caller| passes[*caller].is_lost()).collect()
}

#[test]
fn a_gate_has_room_for_everybody_and_for_nobody_for_ever() {
    assert_eq!(lose(4, &[1, 1, 1, 1]), [0; 0]);
    // The host that has most loses its oldest: to others, and to itself.
    assert_eq!(lose(4, &[1, 1, 1, 1, 1, 1]), [0, 1]);
    assert_eq!(lose(4, &[1, 1, 1, 1, 2, 3]), [0, 1]);
    assert_eq!(lose(4, &[2, 1, 1, 1, 3]), [1], "who has one keeps it");
    assert_eq!(lose(4, &[2, 1, 1, 2, 3, 3]), [0, 1], "of those who have as many, the oldest");
    // As many hosts as there are places: then it is the one that was there first.
    assert_eq!(lose(4, &[1, 2, 3, 4, 5]), [0]);
    assert_eq!(lose(4, &[1, 2, 3, 4, 4]), [3], "the newcomer counts");
    assert_eq!((lose(1, &[1, 2]), lose(0, &[1])), (vec![0], vec![]));
}

#[test]
fn a_place_is_free_again_when_it_is_given_back_or_lost() {
    let (gate, here) = (HandshakeGate::new(2), [10, 0, 0, 1].into());
    let (first, second) = (gate.enter(here), gate.enter(here));
    drop(first);
    let third = gate.enter(here);
    assert!(!second.is_lost() && !third.is_lost());
    let fourth = gate.enter(here);
    assert!(second.is_lost() && !third.is_lost());
    wait(second.lost());
    drop(second);
    assert!(!third.is_lost() && !fourth.is_lost(), "who has lost its place has none to give back");
}

#[test]
fn a_host_is_one_whatever_addresses_it_chooses() {
    let host = |address: &str| Host::of(address.parse().unwrap());
    assert_eq!((host("127.0.0.1"), host("::ffff:10.0.0.7")), (host("127.9.8.7"), host("10.0.0.7")));
    assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
    assert_ne!(host("10.0.0.7"), host("10.0.0.8"));
    assert_eq!(host("::1"), Host::of(std::net::Ipv6Addr::LOCALHOST.into()));
    assert_eq!(host("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
}

/// No error blames the token where a full gate can be the reason.
#[test]
fn a_full_gate_is_not_mistaken_for_another_token() {
    let closed = |missing| SecurityError::Closed { from: Side::Server, missing }.to_string();
    for missing in ["its version", "its TLS handshake"] {
        assert!(
            closed(missing).contains("as many callers as it takes at once"),
            "{}",
            closed(missing)
        );
        assert!(!closed(missing).contains("token"), "{}", closed(missing));
    }
    assert!(closed("its welcome").contains("another token or certificate?"));
}
