//! Texts are read back.

#![cfg(test)]

use super::*;

#[test]
fn texts_are_read_back() {
    for (text, exchange) in Exchange::TEXTS {
        assert_eq!((text.parse(), exchange.to_string()), (Ok(exchange), text.to_owned()));
    }
    assert!("ring".parse::<Exchange>().unwrap_err().contains("star, sharded, hold or nccl"));
}
