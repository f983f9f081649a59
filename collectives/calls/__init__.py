"""The collectives, with torch.distributed's signatures: their checks and the choice of algorithm."""

from collectives.calls.algorithm_choice import add_candidate, chooser_of, use_network
from collectives.calls.arguments import Op
from collectives.calls.call import AUTO, CollectiveCall
from collectives.calls.rehearsal import RecordedGroup, imitate, is_lent, name_of, record_group
from collectives.calls.table import FIRST, FUNCTIONS, Function, check_share, listed_sizes
