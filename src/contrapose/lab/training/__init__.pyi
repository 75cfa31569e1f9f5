"""The names that `contrapose.lab.training` offers. `__init__.py` reads this file and imports a name when it is first used."""

from contrapose.lab.training.build import prepare as prepare
from contrapose.lab.training.build import prepare_other as prepare_other
from contrapose.lab.training.defaults import resolve as resolve
from contrapose.lab.training.embedder import Embedder as Embedder
from contrapose.lab.training.model import Model as Model
from contrapose.lab.training.model import load as load
from contrapose.lab.training.options import make_run as make_run
from contrapose.lab.training.presets import PRESETS as PRESETS
from contrapose.lab.training.presets import preset as preset
from contrapose.lab.training.progress import Progress as Progress
from contrapose.lab.training.run import Run as Run
from contrapose.lab.training.stops import Diverged as Diverged
from contrapose.lab.training.stops import Stopped as Stopped
from contrapose.lab.training.stops import signals as signals
from contrapose.lab.training.trainer import Trainer as Trainer
from contrapose.lab.training.trainer import drain as drain

__all__: list[str]
