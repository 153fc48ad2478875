"""Run a function on two processes that talk through gloo."""

import os
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.multiprocessing as mp


def on_two_processes(work, *arguments):
    """Call ``work(rank, *arguments)`` in two new processes; what rank 0 returns, saved and loaded again."""
    with TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        processes = [context.Process(target=_rank, args=(rank, folder, work, arguments)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=120)
        ended = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        assert ended == [0, 0], f"the processes ended with {ended} (None: were still running)"
        return torch.load(Path(folder, "result"))


def _rank(rank, folder, work, arguments):
    # FSDP2 keeps the process group, and with it the threads of gloo, beyond `destroy_process_group`. Python that shuts
    # down above them is aborted now and then, long after the work is done: so the process ends without that.
    status = 1
    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", f"file://{folder}/group", world_size=2, rank=rank)
        result = work(rank, *arguments)
        if rank == 0:
            torch.save(result, Path(folder, "result"))
        torch.distributed.barrier()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
