"""reasoning-gym's tasks as a data role, a reward role and an environment. The import of reasoning_gym comes later."""

from rolemesh_reasoning_gym.data import DataOptions, ReasoningGymData
from rolemesh_reasoning_gym.environment import EnvironmentOptions, ReasoningGymEnvironment
from rolemesh_reasoning_gym.reward import ReasoningGymReward, RewardOptions

__all__ = ["DataOptions", "EnvironmentOptions", "ReasoningGymData", "ReasoningGymEnvironment", "ReasoningGymReward"]
__all__ += ["RewardOptions"]
