//! One end of a connection, by hand: the handshake as it is documented, and frames as bytes.

use codedgrad::sums::{Header, Kind};
use codedgrad::transport::wire::{CONTROL_BYTES_MAX, HEADER_BYTES};
use ring::hmac;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

pub(crate) struct Bare(pub(crate) TcpStream);

fn key(token: &str) -> hmac::Key {
    let digits: Vec<u8> =
        token.trim().chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] * 16 + pair[1]).collect();
    hmac::Key::new(hmac::HMAC_SHA256, &bytes)
}

fn of(stream: TcpStream) -> Bare {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    Bare(stream)
}

#[allow(dead_code)]
impl Bare {
    /// Connects and proves that it knows the token.
    pub(crate) fn call(address: &str, token: &str) -> std::io::Result<Self> {
        let mut call = of(TcpStream::connect(address)?);
        let nonce = [7; 32];
        call.0.write_all(&[b"CGRAD\0\x01\0", &nonce[..]].concat())?;
        let answer: [u8; 66] = call.exactly()?;
        Self::proves(call.0, token, &nonce, &answer)
    }

    /// Proves that it knows the token, once it has an answer to its greeting.
    pub(crate) fn proves(
        stream: TcpStream,
        token: &str,
        nonce: &[u8; 32],
        answer: &[u8; 66],
    ) -> std::io::Result<Self> {
        let mut call = of(stream);
        let transcript = [b"codedgrad client\x01\0", &nonce[..], &answer[2..34]].concat();
        call.0.write_all(hmac::sign(&key(token), &transcript).as_ref())?;
        assert_eq!(call.exactly::<1>()?, [1]);
        Ok(call)
    }

    /// Takes one call and plays the listening side.
    pub(crate) fn answer(listener: &TcpListener, token: &str) -> Self {
        let mut call = of(listener.accept().unwrap().0);
        let greeting: [u8; 40] = call.exactly().unwrap();
        assert_eq!(greeting[..8], *b"CGRAD\0\x01\0");
        let transcript = [b"\x01\0", &greeting[8..], &[9; 32]].concat();
        let proof = hmac::sign(&key(token), &[b"codedgrad server", &transcript[..]].concat());
        call.0.write_all(&[b"\x01\0", &[9; 32][..], proof.as_ref()].concat()).unwrap();
        let proof: [u8; 32] = call.exactly().unwrap();
        hmac::verify(&key(token), &[b"codedgrad client", &transcript[..]].concat(), &proof)
            .unwrap();
        call.0.write_all(&[1]).unwrap();
        call
    }

    fn exactly<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn put(&mut self, header: &Header, body: &[u8]) {
        self.try_put(header, body).unwrap();
    }

    /// Sends a frame; an error when the other side has hung up.
    pub(crate) fn try_put(&mut self, header: &Header, body: &[u8]) -> std::io::Result<()> {
        let header = Header { length: body.len() as u32, ..*header };
        self.0.write_all(&[&header.encode(), body].concat())
    }

    pub(crate) fn tell(&mut self, message: &Value) {
        self.try_tell(message).unwrap();
    }

    pub(crate) fn try_tell(&mut self, message: &Value) -> std::io::Result<()> {
        let mut fields = message.clone();
        let body = match fields.as_object_mut().and_then(|fields| fields.remove("type")) {
            Some(Value::String(name)) => match name.split_once('.') {
                Some((half, name)) => json!({ half: { name: fields } }).to_string(),
                None => json!({ name: fields }).to_string(),
            },
            _ => panic!("{message} has no type"),
        };
        self.try_put(&Header::control(body.len()), body.as_bytes())
    }

    /// The next frame; an error when the other side has hung up.
    pub(crate) fn try_next(&mut self) -> std::io::Result<(Header, Vec<u8>)> {
        let bytes: [u8; HEADER_BYTES] = self.exactly()?;
        let header = Header::decode(&bytes, CONTROL_BYTES_MAX).map_err(std::io::Error::other)?;
        let mut body = vec![0; header.length as usize];
        self.0.read_exact(&mut body)?;
        Ok((header, body))
    }

    pub(crate) fn next(&mut self) -> (Header, Vec<u8>) {
        self.try_next().unwrap()
    }

    /// The next frame, which must be a message.
    pub(crate) fn hear(&mut self) -> Value {
        let (header, body) = self.next();
        assert_eq!(header.kind, Kind::Control);
        told(&body)
    }
}

/// A message with its name as one of its fields, `sum.held` of what is within `sum`.
pub(crate) fn told(body: &[u8]) -> Value {
    let only = |fields: BTreeMap<String, Value>| fields.into_iter().next().unwrap();
    let (mut name, mut fields) = only(serde_json::from_slice(body).unwrap());
    if name == "sum" {
        let (of_sum, inner) = only(serde_json::from_value(fields).unwrap());
        (name, fields) = (format!("sum.{of_sum}"), inner);
    }
    fields["type"] = name.into();
    fields
}

/// Waits for something that comes soon, and not for ever.
#[allow(dead_code)]
pub(crate) fn wait_for(what: &str, done: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited in vain for {what}");
}
