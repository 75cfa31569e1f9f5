"""All kinds of pairs that an objective takes."""

from contrapose.pairs.pairs import Pairs
from contrapose.pairs.ring import RingPairs
from contrapose.pairs.similarities import Similarities

AnyPairs = Pairs | RingPairs | Similarities
