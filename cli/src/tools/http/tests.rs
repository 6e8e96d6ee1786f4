//! Requests that are served, and those that are not.

#![cfg(test)]

use super::*;
use std::io::{Read, Write};
use std::net;

fn server() -> HttpServer {
    let page = || Page { kind: "application/json", body: "{}".into() };
    let pages = move |path: &str| (path == "/status").then(page);
    HttpServer::serve(([127, 0, 0, 1], 0).into(), pages).unwrap()
}

/// What a request is answered with, until the other end hangs up.
fn answer_to(server: &HttpServer, request: &[u8]) -> String {
    let mut stream = net::TcpStream::connect(server.address()).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    // A request that is too long is not read to its end.
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn only_short_gets_of_known_pages_are_answered() {
    let server = server();
    let first =
        |request: &[u8]| answer_to(&server, request).lines().next().unwrap_or_default().to_owned();
    let known = answer_to(&server, b"GET /status?x=1 HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(known.starts_with("HTTP/1.1 200 OK\r\n") && known.ends_with("\r\n\r\n{}"), "{known}");
    assert!(known.contains("content-type: application/json\r\n"), "{known}");
    assert_eq!(first(b"GET /status HTTP/1.0\n\n"), "HTTP/1.0 200 OK");
    assert_eq!(first(b"GET /../etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(first(b"POST /status HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    for garbage in [&b"\xff\xfe\r\n\r\n"[..], b"CGRAD\0\x01\0\r\n\r\n"] {
        assert_eq!(first(garbage), "HTTP/1.1 400 Bad Request");
    }
    let long = [&b"GET /status "[..], &vec![b'x'; 2 * REQUEST_BYTES_MAX]].concat();
    assert!(!first(&long).contains("200"));
}

#[test]
fn pages_are_fetched_and_whoever_says_nothing_keeps_nobody_out() {
    let server = server();
    let address = server.address();
    let silent: Vec<_> =
        (0..3 * CLIENTS).map(|_| net::TcpStream::connect(address).unwrap()).collect();
    assert_eq!(fetch(&address.to_string(), "/status", REQUEST).unwrap(), "{}");
    let missing = fetch(&address.to_string(), "/nothing", REQUEST).unwrap_err().to_string();
    assert_eq!(missing, "it answers 404 Not Found");
    drop((silent, server));
    assert!(fetch(&address.to_string(), "/status", REQUEST).is_err());
    assert!(fetch("nowhere.invalid:1", "/status", REQUEST).is_err());
}
