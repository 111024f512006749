/* doctor, of several devices that work together: every collective op over all of them against sums made on the host, what it reaches,
 * and that all end when one rank fails. */
#pragma once

#include "measure/doctor.h"

typedef Status (*DoctorOpen)(int rank, Device **out); /* the device of a rank; called on the rank's thread */

/* Rank 0's failures and a line for what failed go to `out`; counts are added to. */
NODISCARD Status doctor_check_ranks(DoctorOpen open, int ranks, FILE *out, DoctorCounts *counts);
/* Prints what gather and reduce_scatter reach, by size: bytes that each link carries. */
NODISCARD Status doctor_measure_ranks(DoctorOpen open, int ranks, FILE *out);
/* OK if, when one rank fails while the others' devices wait for it, all of them end with its reason. */
NODISCARD Status doctor_break_ranks(DoctorOpen open, int ranks);
