/* doctor for several devices that work together: checks every collective op over all of them against sums made on the host, and measures
 * speed. Also checks that all ranks end when one fails. */
#pragma once

#include "measure/doctor.h"

typedef Status (*DoctorOpen)(int rank, Device **out); /* Opens the device of a rank; called on the rank's thread. */

/* Checks all collective ops, and adds to `counts`. Ranks print their failures to stderr; `out` must not be NULL, but nothing is written
 * to it. */
NODISCARD Status doctor_check_ranks(DoctorOpen open, int ranks, FILE *out, DoctorCounts *counts);
/* Prints the speed of gather and reduce_scatter, by size, as bytes that each link carries. */
NODISCARD Status doctor_measure_ranks(DoctorOpen open, int ranks, FILE *out);
/* Lets one rank fail while the devices of all other ranks wait for it. OK if all ranks end with its message. */
NODISCARD Status doctor_break_ranks(DoctorOpen open, int ranks);
