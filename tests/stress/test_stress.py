"""Random stress of flows, waits, budgets and quotas: every invariant holds, nothing deadlocks, everything ends."""

import pytest

from tests.stress import flows, limits, waits, work
from tests.stress.ending import end_everything
from tests.stress.harness import Act, Stress

ACTS = {"flows": flows.ACTS, "waits": waits.ACTS, "budgets": limits.BUDGET_ACTS, "quotas": limits.QUOTA_ACTS}
PROOF = {"flows": "submit_flow", "waits": "suspend", "budgets": "report_usage", "quotas": "change_quota"}
FOCUS = 8  # how much more often a stress acts on its own concept than on the others


@pytest.mark.parametrize("concept", ACTS)
async def test_random_acts_at_once_break_no_invariant_and_everything_ends(database_url: str, concept: str) -> None:
    stress = Stress(database_url, share_of_quotas=0.8 if concept == "quotas" else 0.1)
    acts: dict[Act, int] = {**work.ACTS}
    for name, weights in ACTS.items():
        acts |= {act: weight * (FOCUS if name == concept else 1) for act, weight in weights.items()}

    async with stress.running():
        await work.prepare(stress.actors[0])
        await limits.prepare(stress.actors[0])
        await stress.run(acts)
        await end_everything(stress)
    assert stress.world.done[PROOF[concept]] > 0
