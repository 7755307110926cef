#!/usr/bin/python3
"""Checks batches on a CUDA device, by hand, on a machine that has one. Exit status 77: there is none.

  PYTHONPATH=build/release/lib/python python3 agent/python/tests/device_check.py

Every batch is compared on the device while other kernels keep it busy.
"""
import gc
import sys
import time

import numpy as np

import replaybus

try:
    import torch
except ImportError:
    print("skipped: torch is missing")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: torch sees no CUDA device")
    sys.exit(77)

import replaybus.torch as rt  # noqa: E402

FRAME, ITEMS, BATCH = (84, 84, 4), 2048, 256


def fill(client: replaybus.Client) -> None:
    """Frame i is filled with i % 251, and its number is i."""
    with client.writer() as writer:
        for first in range(0, ITEMS, 128):
            number = np.arange(first, first + 128)
            frames = np.broadcast_to((number % 251).astype("uint8")[:, None, None, None], (128, *FRAME))
            writer.append_block({"frame": np.ascontiguousarray(frames), "n": number}, item=replaybus.Last(1, "frames"))


def check(batch: rt.Batch) -> torch.Tensor:
    """Whether each pixel is right, as a number on the device: nothing here waits for the device."""
    frame, number = batch.data["frame"], batch.data["n"]
    assert frame.is_cuda and number.is_cuda and batch.weight.is_cuda and not batch.key.is_cuda
    return (frame == (number % 251).to(torch.uint8).reshape(-1, 1, 1, 1, 1)).all()


def run(batches, n: int) -> float:
    """Checks n batches with a busy device; returns GB/s."""
    busy, right, begun = torch.randn(2048, 2048, device="cuda"), [], time.monotonic()
    for _, batch in zip(range(n), batches):
        busy = busy @ busy
        busy = busy / busy.norm()
        right.append(check(batch))
    assert len(right) == n and torch.stack(right).all(), "a batch differs from what was written"
    return n * BATCH * np.prod(FRAME) / (time.monotonic() - begun) / 1e9


def check_priorities(client: replaybus.Client) -> None:
    """Priorities go back while the tensor that had them is written again."""
    busy, priorities = torch.randn(2048, 2048, device="cuda"), torch.zeros(64, device="cuda")
    with rt.Sampler(client, "frames", 64, device="cuda") as sampler, rt.Updater(client, "frames") as updater:
        for _, batch in zip(range(200), sampler):
            busy = busy @ busy
            busy = busy / busy.norm()
            priorities.copy_(batch.data["n"][:, 0] + 1)
            updater.add(batch.key, priorities)
        assert updater.flush(10).missing == 0
        rows = client.fetch("frames", batch.key)
        assert (rows.priority == rows.data["n"][:, 0] + 1).all(), "a priority differs from what was computed"
        print(sampler, updater)


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    with replaybus.Server([replaybus.Table("frames", max_size=ITEMS)]) as server, server.client() as client:
        fill(client)
        for options in ({}, {"prefetch": 1}, {"prefetch": 4}):
            with rt.Sampler(client, "frames", BATCH, device="cuda", **options) as sampler:
                run(sampler, 20)
                print(f"Sampler(device='cuda', {options}): {run(sampler, 200):.2f} GB/s")
        with rt.Sampler(client, "frames", BATCH) as sampler:
            print(f"batch.to('cuda'), without prefetch: {run((batch.to('cuda') for batch in sampler), 200):.2f} GB/s")
        del sampler  # what CUDA made in this process must not be freed in the workers, which are forked
        gc.collect()
        dataset = rt.Dataset(client, "frames", BATCH, max_samples=100 * BATCH)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True)
        print(f"prefetch(DataLoader(workers=2, pin_memory=True)): {run(rt.prefetch(loader, 'cuda'), 100):.2f} GB/s")
        check_priorities(client)
        with torch.cuda.stream(torch.cuda.Stream()), rt.Sampler(client, "frames", BATCH, device="cuda") as sampler:
            run(sampler, 50)
            with torch.cuda.stream(torch.cuda.Stream()):  # what was copied for one stream is used by another
                run(sampler, 50)
        try:
            rt.Sampler(client, "empty", device="cuda").next(0.3)
        except replaybus.NotFound:
            pass
        q = torch.nn.Linear(4, 2).cuda()
        assert np.array_equal(rt.tensors_of(q, "q")["q/layer0/weight"], q.weight.detach().cpu().numpy().T)
    print("all batches were right")


if __name__ == "__main__":
    main()
