"""The edge: ``agent`` runs a released model on a device, ``hub`` serves devices; they meet in the edge protocol."""
