"""The rounds of a run in chronological order: the baseline's speed and the state of the host."""

from collections.abc import Mapping

import pandas as pd


def timeline(samples: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Return one row per round, in chronological order.

    Columns: `minutes` since the first round, `launch`, the baseline's step time `relative` to its
    median over the block, the shares of all cores' time that other processes (`foreign`) and other
    guests (`steal`) had, and the cores' mean frequency, `mhz`; NaN where unknown. The system counts
    in ticks of 10 ms, so a short round's shares are rough, and `foreign` may come out below 0:
    average them.

    Args:
      samples: rows of bench.records.rows.SampleRow.
      baselines: by block.
    """
    key = ["block", "launch", "attempt", "round"]
    # If no system reports a frequency, the column is of objects, whose mean pandas takes slowly.
    samples = samples.astype({"host_mhz": float})
    host = samples.groupby(key, sort=False).agg(
        at=("at", "min"),
        available=("host_cores_s", "sum"),
        foreign=("host_foreign_s", "sum"),
        steal=("host_steal_s", "sum"),
        mhz=("host_mhz", "mean"),
    )
    available = host["available"].astype(float).where(host["available"] > 0)
    own = samples[samples["arm"] == samples["block"].map(baselines)]
    seconds = own["throughput_ns"] / own["steps"]
    relative = seconds / seconds.groupby(own["block"]).transform("median")
    table = host.assign(
        minutes=(host["at"] - host["at"].min()) / 60,
        relative=pd.Series(relative.to_numpy(), index=pd.MultiIndex.from_frame(own[key])),
        foreign=host["foreign"] / available,
        steal=host["steal"] / available,
    )
    columns = ["minutes", "launch", "relative", "foreign", "steal", "mhz"]
    return table.sort_values("at", kind="stable").reset_index()[columns]
