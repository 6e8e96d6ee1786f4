//! Only DNS names give roles.

#![cfg(test)]

use super::super::keys::roles;
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
        named_roles("coordinator.codedgrad", &["worker-1.codedgrad", "10.0.0.1", "host.example"]),
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
