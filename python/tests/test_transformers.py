"""The Trainer and Accelerate as workers of coded runs: processes of their own, and of this one."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import pathlib
import signal
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

import codedgrad.torch as coded  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad.transformers import CodedTrainer  # noqa: E402

pytestmark = pytest.mark.torch

LIMIT_SECONDS = 60.0
UNIT, UNITS, STEPS, WORKERS = 2, 12, 6, 3
# Three batches, and some samples that are left over.
SAMPLES = 3 * UNIT * UNITS + 4

# Each worker is forked from a process that has the libraries, and nothing else, in it.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["codedgrad.transformers", "transformers.models.llama.modeling_llama"]
)


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 64, (4 + index % 7,), generator=generator)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Collator:
    """Pads; late by some seconds for each unit."""

    def __init__(self, late: float = 0.0):
        self.late = late

    def __call__(self, texts: List[Any]) -> Dict[str, Any]:
        time.sleep(self.late)
        labels = torch.nn.utils.rnn.pad_sequence(texts, True, -100)
        ids = labels.clamp(min=0)
        return {"input_ids": ids, "labels": labels, "attention_mask": (labels >= 0).long()}


class Model(torch.nn.Module):
    """Takes no num_items_in_batch; its loss is the mean over its unit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)
        self.head = torch.nn.Linear(8, 64)

    def forward(self, input_ids: Any, labels: Any, attention_mask: Any = None) -> Dict[str, Any]:
        logits = self.head(self.embed(input_ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class At(transformers.TrainerCallback):
    """Calls something after a step."""

    def __init__(self, step: int, what: Callable[[Any], None]):
        self.step, self.what = step, what

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            self.what(control)


def die(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop(control: Any) -> None:
    control.should_training_stop = True


def llama(dropout: float = 0.1) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_dropout=dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def arguments(out: Any, **more: Any) -> Any:
    told = {
        "output_dir": str(out),
        "per_device_train_batch_size": UNIT,
        "gradient_accumulation_steps": UNITS,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(**{**told, **more})


def parameters(model: Any) -> str:
    content = hashlib.sha256()
    for tensor in model.parameters():
        content.update(tensor.detach().numpy().tobytes())
    return content.hexdigest()


def train(
    out: Any,
    late: float = 0.0,
    callbacks: Any = (),
    resume: Optional[str] = None,
    kind: Any = CodedTrainer,
    model: Any = None,
    **more: Any,
) -> Dict[str, Any]:
    """Trains a model; what is left of it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer = kind(
            model=llama() if model is None else model,
            args=arguments(out, **more),
            train_dataset=Texts(),
            data_collator=Collator(late),
            callbacks=list(callbacks),
        )
        trainer.train(resume)
        trainer.save_model(os.path.join(out, "last"))
    finally:
        torch.set_num_threads(threads)
    logs = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    result = {"step": trainer.state.global_step, "logs": logs, "bits": parameters(trainer.model)}
    if kind is CodedTrainer:
        result.update(saver=trainer.is_world_process_zero(), report=trainer.run.report())
        assert trainer.run.saver is result["saver"] is trainer.args.should_save
    return result


def plain_loop(out: Any) -> Dict[str, Any]:
    """A loop with Accelerate."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(0.2), torch.nn.Linear(5, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 0.01))
    with coded.join(model, optimizer, units=UNITS, steps=STEPS) as run:
        for step in run:
            for micro in step:
                x = torch.randn(UNIT, 3)
                accelerator.backward(model(x).square().mean())
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return {"bits": parameters(model)}


def begin(pipe: Any, environment: Dict[str, str], work: Any, told: Dict[str, Any]) -> None:
    os.environ.update(environment)
    pipe.send(work(**told))


class Workers:
    """Processes of workers, ended with the test."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.begun: List[Any] = []

    def start(self, coordinator: Any, worker: int, work: Any = train, **told: Any) -> Any:
        told.setdefault("out", str(self.folder / str(worker)))
        mine, theirs = processes.Pipe(False)
        environment = coordinator.environment(worker=worker)
        process = processes.Process(target=begin, args=(theirs, environment, work, told))
        process.start()
        theirs.close()
        self.begun.append(process)
        return process, mine

    @staticmethod
    def result(begun: Any) -> Any:
        process, pipe = begun
        assert pipe.poll(LIMIT_SECONDS), "a worker hangs"
        try:
            return pipe.recv()
        except EOFError:
            process.join(LIMIT_SECONDS)
            return process.exitcode

    def saved(self, worker: int) -> List[str]:
        return sorted(path.name for path in (self.folder / str(worker)).glob("*"))


@pytest.fixture
def workers(tmp_path: pathlib.Path) -> Iterator[Workers]:
    found = Workers(tmp_path)
    try:
        yield found
    finally:
        for process in found.begun:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Any) -> Dict[str, Any]:
    """One process without a run, which saves after each step."""
    out = tmp_path_factory.mktemp("alone")
    return {**train(out, save_strategy="steps", save_steps=1), "out": out}


def serve(scheme: str = "groups:s=2", workers: int = WORKERS, **more: Any) -> Any:
    told = {"units": UNITS, "steps": STEPS, "length": coded.length(llama()), "unit_samples": UNIT}
    return loop.serve(scheme, workers=workers, max_wait=LIMIT_SECONDS, **{**told, **more})


def test_a_late_worker_ends_with_the_bits_of_one_process(workers: Workers, alone: Any) -> None:
    with serve() as coordinator:
        begun = [
            workers.start(
                coordinator, k, late=0.1 * (k == 2), save_strategy="steps", save_steps=4
            )
            for k in range(WORKERS)
        ]
        results = [workers.result(each) for each in begun]
    for result in results:
        assert (result["bits"], result["logs"]) == (alone["bits"], alone["logs"])
        assert result["step"] == result["report"]["applied"] == STEPS
    assert [result["saver"] for result in results] == [True, False, False]
    assert workers.saved(0) == ["checkpoint-4", "checkpoint-6", "last"]
    assert workers.saved(1) == workers.saved(2) == []
    state = json.loads((workers.folder / "0" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    assert len(alone["logs"]) == STEPS // 2


def test_others_go_on_without_a_killed_worker_and_save(workers: Workers, alone: Any) -> None:
    told: Dict[str, Any] = {"save_strategy": "steps", "save_steps": STEPS, "disable_tqdm": False}
    with serve() as coordinator:
        begun = [workers.start(coordinator, 0, callbacks=[At(2, die)], **told)]
        begun += [workers.start(coordinator, k, late=0.01, **told) for k in (1, 2)]
        results = [workers.result(each) for each in begun]
        assert coordinator.survivors
    assert results[0] == -signal.SIGKILL
    for result in results[1:]:
        assert (result["bits"], result["logs"]) == (alone["bits"], alone["logs"])
    assert [result["saver"] for result in results[1:]] == [True, False]
    assert workers.saved(0) == workers.saved(2) == []
    assert workers.saved(1) == ["checkpoint-6", "last"]


def test_others_go_on_without_a_worker_that_is_told_to_end(workers: Workers, alone: Any) -> None:
    told: Dict[str, Any] = {"save_strategy": "steps", "save_steps": STEPS}
    # Nobody may need to find out by waiting.
    with serve(silence=LIMIT_SECONDS) as coordinator:
        begun = [workers.start(coordinator, 0, callbacks=[At(2, leave)], **told)]
        begun += [workers.start(coordinator, k, late=0.01, **told) for k in (1, 2)]
        results = [workers.result(each) for each in begun]
    assert results[0] == 0
    for result in results[1:]:
        assert (result["bits"], result["logs"]) == (alone["bits"], alone["logs"])
    assert workers.saved(0) == [] and workers.saved(1) == ["checkpoint-6", "last"]


def test_a_replacement_takes_over_the_state(workers: Workers, alone: Any) -> None:
    # Nobody else has the units of a lost worker: the run waits, and keeps one step only.
    with serve("uncoded", log_steps=1, return_within=LIMIT_SECONDS) as coordinator:
        begun = [workers.start(coordinator, k) for k in (0, 1)]
        lost = workers.start(coordinator, 2, callbacks=[At(5, die)])
        assert workers.result(lost) == -signal.SIGKILL
        begun.append(workers.start(coordinator, 2))
        results = [workers.result(each) for each in begun]
    for result in results:
        assert (result["bits"], result["logs"]) == (alone["bits"], alone["logs"])
        assert result["step"] == STEPS
    assert [result["report"]["resyncs"] for result in results] == [0, 0, 1]


def test_workers_resume_from_a_checkpoint(workers: Workers, alone: Any) -> None:
    checkpoint = str(alone["out"] / "checkpoint-4")
    with serve(first=4) as coordinator:
        begun = [workers.start(coordinator, k, resume=checkpoint) for k in range(WORKERS)]
        results = [workers.result(each) for each in begun]
    for result in results:
        assert (result["bits"], result["logs"]) == (alone["bits"], alone["logs"])
        assert result["report"]["applied"] == STEPS - 4


def test_a_callback_that_stops_ends_the_run_for_all(workers: Workers) -> None:
    with serve(steps=20) as coordinator:
        begun = [
            workers.start(coordinator, k, callbacks=[At(2, stop)], max_steps=20)
            for k in range(WORKERS)
        ]
        results = [workers.result(each) for each in begun]
    for result in results:
        assert (result["bits"], result["step"]) == (results[0]["bits"], results[0]["step"])
    assert 2 <= results[0]["step"] == coordinator.decided < 20


def test_a_second_division_by_accelerate_is_refused() -> None:
    accelerate.state.GradientState._reset_state()
    try:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        model = accelerator.prepare(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(TypeError, match="gradient_accumulation_steps=4.*without it"):
            coded.join(model, optimizer, units=4, steps=1)
    finally:
        accelerate.state.GradientState._reset_state()


def test_accelerate_prepares_the_model_of_a_loop(workers: Workers) -> None:
    length = 3 * 5 + 5 + 5 + 1
    found = []
    for count, scheme in ((1, "uncoded"), (2, "groups:s=1")):
        told = {"length": length, "unit_samples": 1}
        with serve(scheme, count, **told) as coordinator:
            begun = [workers.start(coordinator, k, plain_loop) for k in range(count)]
            found += [workers.result(each)["bits"] for each in begun]
    assert len(found) == 3 and len(set(found)) == 1


def test_the_loss_is_the_trainers_own(tmp_path: pathlib.Path) -> None:
    # In its order, and without dropout: but for rounding, the Trainer alone does the same.
    told: Dict[str, Any] = {"train_sampling_strategy": "sequential", "max_steps": 3}
    told.update(logging_steps=1, optim="sgd")
    if not hasattr(arguments(tmp_path), "train_sampling_strategy"):
        pytest.skip("this Trainer does not read samples in order")
    models = [llama(0.0), llama(0.0)]
    ours = train(tmp_path, model=models[0], **told)
    plain = train(tmp_path, kind=transformers.Trainer, model=models[1], **told)
    for one, other in zip(ours["logs"], plain["logs"]):
        # The Trainer's own epochs end with what is less than a batch.
        assert {**one, "epoch": 0} == pytest.approx({**other, "epoch": 0}, rel=1e-4)
    for a, b in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_model_without_a_count_is_weighted_by_tokens(tmp_path: pathlib.Path) -> None:
    model = Model()
    expected = Model()
    expected.load_state_dict(model.state_dict())
    told: Dict[str, Any] = {"optim": "sgd", "warmup_steps": 0, "max_grad_norm": 0.0}
    result = train(tmp_path, model=model, max_steps=1, logging_steps=1, **told)
    # The same batch at once: its samples are those of the first step.
    run = coded.join(Model(), units=UNITS, steps=1, unit_samples=UNIT, seed=42)
    numbers = coded.Loader(Texts(), run).indices(0, range(UNIT * UNITS))
    run.close()
    batch = Collator()([Texts()[number] for number in numbers])
    loss = expected(batch["input_ids"], batch["labels"])["loss"]
    loss.backward()
    assert result["logs"][0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for a, b in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(a, b - 1e-2 * b.grad, rtol=1e-5, atol=1e-7)


def test_the_run_is_left_when_training_fails(tmp_path: pathlib.Path) -> None:
    def fail(_: Any) -> None:
        raise KeyError("of the user's own")

    model = llama()
    with pytest.raises(KeyError, match="of the user's own"):
        train(tmp_path, callbacks=[At(1, fail)], model=model)
    assert train(tmp_path, model=model)["step"] == STEPS


@pytest.mark.parametrize(
    "told",
    [
        {"auto_find_batch_size": True},
        {"data_seed": 7},
        {"include_num_input_tokens_seen": "all"},
        {"train_sampling_strategy": "group_by_length"},
        {"optim": "galore_adamw_layerwise"},
        {"fp16": True},
        {"fsdp": True},
    ],
    ids=lambda told: next(iter(told)),
)
def test_arguments_that_are_not_exact_are_refused(told: Any, tmp_path: pathlib.Path) -> None:
    args = arguments(tmp_path)
    for name, value in told.items():
        if not hasattr(args, name):
            pytest.skip(f"this Trainer has no {name}")
        # What the arguments' own checks refuse on this machine is not of interest.
        setattr(args, name, value)
    from codedgrad.transformers import _check

    with pytest.raises(ValueError, match=next(iter(told))):
        _check(args, Texts())


def test_jobs_of_torch_distributed_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from codedgrad import transformers as module

    args = arguments(tmp_path)
    monkeypatch.setattr(type(args), "world_size", property(lambda _: 2))
    with pytest.raises(ValueError, match="LOCAL_RANK.*unset LOCAL_RANK"):
        module._check(args, Texts())
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="codedgrad run -n 4"):
        patched.setenv("SLURM_STEP_NUM_TASKS", "4")
        CodedTrainer(model=Model(), args=args, train_dataset=Texts())
    monkeypatch.setenv("LOCAL_RANK", "0")
    spec = importlib.util.spec_from_file_location("codedgrad.imported_again", module.__file__)
    assert spec is not None and spec.loader is not None
    with pytest.warns(RuntimeWarning, match="LOCAL_RANK"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_data_that_has_no_numbers_is_refused(tmp_path: pathlib.Path) -> None:
    def trainer(kind: Any = CodedTrainer, data: Any = None, **more: Any) -> Any:
        return kind(
            model=Model(),
            args=arguments(tmp_path, **more),
            train_dataset=Texts() if data is None else data,
            data_collator=Collator(),
        )

    class Own(CodedTrainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader()

    with pytest.raises(TypeError, match="Stream, an IterableDataset"):
        trainer(data=Stream())
    with pytest.raises(TypeError, match="get_train_dataloader is overridden"):
        trainer(Own)
    with pytest.raises(ValueError, match="76 samples, a batch 80"):
        trainer(gradient_accumulation_steps=40).train()
    with pytest.raises(ValueError, match="trial"):
        trainer().train(trial={})


def test_training_logs_show_what_the_run_measures(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    shown: List[Dict[str, float]] = []

    class Seen(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            shown.append(dict(logs))

    found = train(tmp_path, model=Model(), callbacks=[Seen()], report_to=["tensorboard"])
    training = [each for each in shown if "loss" in each]
    assert [each["coded/applied_steps"] for each in training] == [2, 4, 6]
    assert all(each["coded/work"] == 1 for each in training)
    # The summary of the whole training has none, and what all workers have alike has none.
    assert not any(name.startswith("coded/") for name in shown[-1])
    assert found["logs"] and not any("coded/work" in each for each in found["logs"])
    (board,) = tmp_path.glob("board/**/events.*")
    read = accumulators.EventAccumulator(str(board.parent))
    read.Reload()
    assert len(read.Scalars("train/coded/step_seconds")) == 3
