//! Certificates: a job's own authority, and who a certificate is for.

use super::token::{read_secret, write_new};
use super::{DOMAIN, Role, SecurityError, Side, Token};
use crate::ids::Worker;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The certificate of one process, its private key, and the authorities whose certificates it
/// trusts.
///
/// A certificate is for the one role that it names among its DNS names ([`Role`]), whatever the
/// host, and for both ends of a connection: workers connect to each other too. An authority that
/// serves several jobs makes their workers interchangeable; give such jobs tokens.
#[derive(Clone)]
pub struct Keys {
    role: Role,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Keys {
    /// Reads `ca.pem`, `{name}.pem` and `{name}.key` from a folder that [`keygen`] or the user
    /// filled.
    ///
    /// # Errors
    /// See [`Self::files`].
    pub fn read(dir: &Path, name: &str) -> Result<Self, SecurityError> {
        Self::files(
            &dir.join("ca.pem"),
            &dir.join(format!("{name}.pem")),
            &dir.join(format!("{name}.key")),
        )
    }

    /// Reads PEM files: the trusted authorities, a certificate (those between it and an authority
    /// may follow), its key.
    ///
    /// # Errors
    /// [`SecurityError`] when a file cannot be read, holds something else, does not fit the others,
    /// when the certificate does not name one role, or when, on Unix, others than its owner can
    /// read the private key.
    pub fn files(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, SecurityError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |reason| SecurityError::Unusable { path, reason }
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(ca)? {
            roots.add(root).map_err(unusable(ca))?;
        }
        let chain = certificates(certificate)?;
        let role = match &roles(&chain[0]).map_err(unusable(certificate))?[..] {
            &[role] => role,
            other => {
                return Err(SecurityError::OwnRole {
                    path: certificate.into(),
                    count: other.len(),
                });
            }
        };
        let secret = PrivateKeyDer::from_pem_slice(&read_secret(key)?).map_err(|source| {
            SecurityError::Pem { path: key.into(), what: "private key", source }
        })?;
        let (server, client) = configs(roots, chain, secret).map_err(unusable(key))?;
        Ok(Self { role, server: Arc::new(server), client: Arc::new(client) })
    }

    /// Who the certificate is for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    pub(super) fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Keys").field("role", &self.role).finish_non_exhaustive()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let text =
        fs::read(path).map_err(|source| SecurityError::File { path: path.into(), source })?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found
        .and_then(|found| if found.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(found) });
    found.map_err(|source| SecurityError::Pem { path: path.into(), what: "certificate", source })
}

/// TLS 1.3 in both directions. Nothing is resumed: every connection shows its certificate.
fn configs(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(ServerConfig, ClientConfig), rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots);
    let general =
        |error: rustls::client::VerifierBuilderError| rustls::Error::General(error.to_string());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(general)?;
    let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(general)?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.clone(), key.clone_key())?;
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(servers)
        .with_client_auth_cert(chain, key)?;
    client.resumption = Resumption::disabled();
    Ok((server, client))
}

/// The name that a server's certificate must have.
pub(super) fn server_name(role: Role) -> ServerName<'static> {
    ServerName::try_from(role.to_string()).expect("a role is a DNS name")
}

/// Who a certificate chain that TLS has verified is for.
pub(super) fn role_of(
    chain: Option<&[CertificateDer<'_>]>,
    from: Side,
) -> Result<Role, SecurityError> {
    let refused = |reason| SecurityError::Certificate { from, reason };
    let certificate = chain
        .and_then(<[_]>::first)
        .ok_or_else(|| refused(rustls::Error::NoCertificatesPresented))?;
    match &roles(certificate).map_err(refused)?[..] {
        &[role] => Ok(role),
        other => Err(SecurityError::PeerRole { from, count: other.len() }),
    }
}

/// The roles among a certificate's DNS names. Names are searched for in its bytes, and count if
/// they verify.
fn roles(certificate: &CertificateDer<'_>) -> Result<Vec<Role>, rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let mut roles = Vec::new();
    for end in
        (0..certificate.len()).filter(|&end| certificate[end..].starts_with(DOMAIN.as_bytes()))
    {
        let of_label = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        let length = certificate[..end].iter().rev().take_while(|byte| of_label(byte)).count();
        let label = String::from_utf8_lossy(&certificate[end - length..end]);
        if let Some(role) = Role::from_label(&label)
            && !roles.contains(&role)
            && verify_server_name(&parsed, &server_name(role)).is_ok()
        {
            roles.push(role);
        }
    }
    Ok(roles)
}

/// Makes a job's own authority, the certificates of a coordinator and `workers` workers, and a
/// token, in a folder: `ca.pem`, `coordinator.pem`, `coordinator.key`, `worker-0.pem`, ...,
/// `token`. A process needs `ca.pem`, its own two files and, where it is used, the token. Private
/// keys and the token can be read by their owner only.
///
/// The authority's own key is forgotten, so that nobody can join the job later, unless `keep_ca`
/// asks for it as `ca.key`. Certificates do not expire; a job ends by deleting them. Returns what
/// was written.
///
/// # Errors
/// [`SecurityError`] when one of the files exists or cannot be written; then none is left behind.
pub fn keygen(dir: &Path, workers: u32, keep_ca: bool) -> Result<Vec<PathBuf>, SecurityError> {
    fs::create_dir_all(dir).map_err(|source| SecurityError::File { path: dir.into(), source })?;
    let ca = authority()?;
    let mut files = vec![
        ("ca.pem".to_owned(), ca.pem(), false),
        ("token".into(), Token::fresh()?.text(), true),
    ];
    if keep_ca {
        files.push(("ca.key".into(), ca.key().serialize_pem(), true));
    }
    for role in std::iter::once(Role::Coordinator)
        .chain((0..workers).map(|worker| Role::Worker(Worker(worker))))
    {
        let key = KeyPair::generate()?;
        let certificate = parameters(role)?.signed_by(&key, &ca)?;
        files.push((format!("{}.pem", role.label()), certificate.pem(), false));
        files.push((format!("{}.key", role.label()), key.serialize_pem(), true));
    }
    let mut written = Vec::new();
    for (name, text, secret) in files {
        let path = dir.join(name);
        if let Err(error) = write_new(&path, text.as_bytes(), secret) {
            written.iter().for_each(|path| drop(fs::remove_file(path)));
            return Err(error);
        }
        written.push(path);
    }
    Ok(written)
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, SecurityError> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = named("codedgrad job");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?)
}

fn parameters(role: Role) -> Result<CertificateParams, SecurityError> {
    let mut parameters = CertificateParams::new([role.to_string()])?;
    parameters.distinguished_name = named(&role.label());
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_roles(common: &str, names: &[&str]) -> Vec<Role> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.distinguished_name = named(common);
        roles(parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der()).unwrap()
    }

    #[test]
    fn only_dns_names_give_roles() {
        let worker = |number| Role::Worker(Worker(number));
        assert_eq!(
            named_roles(
                "coordinator.codedgrad",
                &["worker-1.codedgrad", "10.0.0.1", "host.example"]
            ),
            [worker(1)]
        );
        assert_eq!(
            named_roles("x", &["coordinator.codedgrad", "worker-0.codedgrad"]),
            [Role::Coordinator, worker(0)]
        );
        for name in [
            "coordinator.codedgrad.example",
            "my-worker-1.codedgrad",
            "a.worker-1.codedgrad",
            "worker-01.codedgrad",
        ] {
            assert_eq!(named_roles("worker-1.codedgrad", &[name]), [], "{name}");
        }
    }
}
