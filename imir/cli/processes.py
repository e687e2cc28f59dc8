"""Several processes, on one machine or many, that share the work of one command."""

import jax


def join(coordinator: str | None, processes: int | None, process_id: int | None) -> None:
    """Join the other processes: by address and ids, or as the cluster says (`auto`).

    Raises `ValueError` where ids and count do not fit, or where not everyone came.
    """
    if coordinator is None:
        if (processes, process_id) != (None, None):
            raise ValueError(
                "Argument `coordinator` must be given with `processes` and `process_id`, "
                "but is missing."
            )
        return
    if coordinator == "auto":
        _initialize()
        return
    if processes is None or process_id is None or not 0 <= process_id < processes:
        raise ValueError(
            "Argument `process_id` must be from 0 to one less than `processes`, but they are "
            f"{process_id} and {processes}."
        )
    _initialize(coordinator, processes, process_id)


def _initialize(*address) -> None:
    try:
        jax.distributed.initialize(*address, initialization_timeout=60)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            "Argument `processes` must be the number of processes that start together, but they "
            f"did not meet ({str(error).splitlines()[0]})."
        ) from None
