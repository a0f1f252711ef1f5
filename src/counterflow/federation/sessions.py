"""Both sides of a job that can be killed at any moment, under one name."""

from counterflow.federation.coordinator_session import CoordinatorSession
from counterflow.federation.plant_session import PlantSession
from counterflow.federation.turns import Outgoing

__all__ = ["CoordinatorSession", "Outgoing", "PlantSession"]
