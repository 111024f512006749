#!/bin/bash
# The same with several ranks: whichever call of whichever of them fails, all end or go on together.
RANKS=4 TRIALS=${TRIALS:-15} exec bash "$(dirname "$0")/faults.t"
