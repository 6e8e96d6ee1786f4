//! Making the certificates of a job.

use super::token::write_new;
use super::{Role, SecurityError, Token};
use crate::ids::Worker;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Makes a job's own authority, the certificates of a coordinator and `workers` workers, and a
/// token, in a folder: `ca.pem`, `coordinator.pem`, `coordinator.key`, `worker-0.pem`, ...,
/// `token`. A process needs `ca.pem`, its own two files and, where it is used, the token. Private
/// keys and the token can be read by their owner only.
///
/// The authority's own key is forgotten, so that no further worker can join the job, unless
/// `keep_ca` asks for it as `ca.key`. Certificates do not expire; a job ends by deleting them.
/// Returns what was written.
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
mod tests;
