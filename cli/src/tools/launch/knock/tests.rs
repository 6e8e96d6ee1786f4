//! A port where nothing listens is told from one where something does.

#![cfg(test)]

use super::*;
use std::net::TcpListener;

#[test]
fn a_port_with_nobody_is_told_from_one_with_somebody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    assert!(!is_refused(&address));
    drop(listener);
    assert!(is_refused(&address));
    assert!(!is_refused("no address"));
}
