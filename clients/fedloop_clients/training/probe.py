"""``python -m fedloop_clients.training.probe``: what torch sees of this machine, as one line of JSON."""

from __future__ import annotations

import warnings

from fedloop_clients.training.seen import Devices, Gpu

__all__ = ["main"]


def main() -> None:
    """Prints what is seen."""
    print(_seen().model_dump_json())  # noqa: T201  the answer


def _seen() -> Devices:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            import torch

            gpus = tuple(_gpu(at) for at in range(torch.cuda.device_count())) if torch.cuda.is_available() else ()
        except (ImportError, OSError, RuntimeError) as error:
            return Devices(error=str(error).splitlines()[0][:300] if str(error) else type(error).__name__)
    return Devices(
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        threads=torch.get_num_threads(),
        gpus=gpus,
        warnings=tuple(str(warning.message) for warning in said),
    )


def _gpu(at: int) -> Gpu:
    import torch

    try:
        free, total = torch.cuda.mem_get_info(at)
    except RuntimeError as error:
        return Gpu(name=f"GPU {at}", total=0, free=0, trouble=str(error).splitlines()[0][:300])
    return Gpu(name=torch.cuda.get_device_name(at), total=total, free=free)


if __name__ == "__main__":
    main()
