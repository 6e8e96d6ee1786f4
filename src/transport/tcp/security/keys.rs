//! Certificates: a job's own authority, and who a certificate is for.

use super::token::{LONGEST, read_secret};
use super::{DOMAIN, Role, SecurityError, Side};
use crate::files;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::path::Path;
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
    /// Reads `ca.pem`, `{name}.pem` and `{name}.key` from a folder that
    /// `codedgrad keygen` or the user filled.
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
    let text = files::read(path, LONGEST)
        .map_err(|source| SecurityError::File { path: path.into(), source })?;
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
pub(super) fn roles(certificate: &CertificateDer<'_>) -> Result<Vec<Role>, rustls::Error> {
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
