"""The data of a simulated federation: which rows each site trains on, evaluates on, and its devices will see."""

from fedloop_simulations.data.heart import fetch_heart, heart_folder
from fedloop_simulations.data.loading import load_world
from fedloop_simulations.data.split import Shares
from fedloop_simulations.data.world import SiteRows, StreamRows, World

__all__ = ["Shares", "SiteRows", "StreamRows", "World", "fetch_heart", "heart_folder", "load_world"]
