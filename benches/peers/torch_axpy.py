"""What torch takes for the same weighted sum on a GPU: a chain of axpys, and the copy that both are compared with.

    python benches/peers/torch_axpy.py [--small]

For K = 2, 4, 8 messages of d = 2^28 f32 or 2^29 bf16: `out = w x_0`, then `out.add_(x_k, alpha=w)`, into an f32 result,
timed by CUDA events; medians of 21 after two to warm up. GB/s counts the bytes that one pass would move (all messages
read, the result written), so the numbers stand beside those of `benches/gpu`. One JSON object per line.
"""

import json
import statistics
import sys

import torch


def median(work):
    times = []
    for repeat in range(23):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if repeat >= 2:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    if not torch.cuda.is_available():
        print("not measured: there is no GPU here")
        return
    small = "--small" in sys.argv
    for dtype, length in [(torch.float32, 1 << (16 if small else 28)), (torch.bfloat16, 1 << (17 if small else 29))]:
        for count in [2, 4, 8]:
            x = [torch.ones(length, dtype=dtype, device="cuda") for _ in range(count)]
            out = torch.empty(length, dtype=torch.float32, device="cuda")
            copy = torch.empty_like(out)

            def chain():
                torch.mul(x[0], 1.5, out=out)
                for message in x[1:]:
                    out.add_(message, alpha=1.5)

            gigabytes = length * (count * x[0].element_size() + 4) / 1e6
            row = {"gpu": torch.cuda.get_device_name(), "dtype": str(dtype), "K": count, "d": length}
            row["chain_gb_s"] = gigabytes / median(chain)
            row["copy_gb_s"] = length * 8 / 1e6 / median(lambda: copy.copy_(out))
            print(json.dumps(row))
            del x, out, copy


if __name__ == "__main__":
    main()
