"""What `codedgrad.torch` is made of; `codedgrad.record` is `recorder`'s, and in no run."""
