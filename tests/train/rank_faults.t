#!/bin/bash
# As faults.t, with several ranks: whichever call of whichever rank fails, all end or continue together.
RANKS=4 TRIALS=${TRIALS:-15} exec bash "$(dirname "$0")/faults.t"
