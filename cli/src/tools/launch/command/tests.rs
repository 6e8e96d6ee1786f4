//! A script joins by the module that it imports.

#![cfg(test)]

use super::*;

#[test]
fn a_script_joins_by_the_module_that_it_imports() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    for (text, join) in [
        ("import codedgrad.torch as coded\n", "codedgrad.torch.prepare or join"),
        ("import os\nfrom codedgrad import loop\n", "codedgrad.loop.join"),
        ("from codedgrad import plan, loop as l\n", "codedgrad.loop.join"),
        ("def main():\n    from codedgrad.loop import join\n", "codedgrad.loop.join"),
        (
            "import torch\nfrom codedgrad.transformers import CodedTrainer as Trainer\n",
            "codedgrad.transformers.CodedTrainer.train",
        ),
        ("import codedgrad.torchless\nimport helper\n", EITHER_JOIN),
        ("# codedgrad.loop is not for us\n", EITHER_JOIN),
    ] {
        std::fs::write(&script, text).unwrap();
        assert_eq!(join_of(&script), join, "{text}");
    }
    assert_eq!(join_of(&folder.path().join("nowhere.py")), EITHER_JOIN);
}
