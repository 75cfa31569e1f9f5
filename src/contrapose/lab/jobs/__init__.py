"""Jobs: work that submitit executes on Slurm, or in other processes of this machine."""
