"""reasoning-gym's tasks as a data role and a reward role. Importing this does not import reasoning_gym."""

from rolemesh_reasoning_gym.data import DataOptions, ReasoningGymData
from rolemesh_reasoning_gym.reward import ReasoningGymReward, RewardOptions

__all__ = ["DataOptions", "ReasoningGymData", "ReasoningGymReward", "RewardOptions"]
