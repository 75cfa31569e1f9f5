"""What is wrong with my training? `Doctor` looks at any contrastive loop, with any criterion, and says so.

doctor     Doctor: when to look, and what was found
call       the embeddings among the arguments of a criterion
quiet      calls of a criterion that leave no trace
gradient   the gradient of any criterion with respect to each similarity
measure    the numbers of one look
checks     from looks to findings; checks_of_data has those of embeddings, batches, towers and processes
limits     the limits of the checks, and how they were calibrated
"""

from contrapose.doctor.doctor import Doctor
from contrapose.doctor.finding import Finding
from contrapose.doctor.look import Look

__all__ = ["Doctor", "Finding", "Look"]
