/* Whether the disk has room for everything that a run will write. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct DiskNeed {
    const char *output_dir;
    int64_t     checkpoint_bytes; /* bytes of one checkpoint */
    int64_t     final_bytes;      /* bytes that are written at the end of the run */
    int64_t     step;             /* train steps already done */
    int64_t     saves_left;       /* checkpoints still to be written, if nothing interrupts the run */
    int64_t     keep;             /* checkpoints that are kept; 0: all */
    bool        is_first;         /* no run of this program was started here before */
    bool        goes_on;          /* resumes from a checkpoint of output_dir: all its files stay; false: only our checkpoints stay */
    bool        starts_anew;      /* not even our checkpoints stay */
} DiskNeed;

/* ERR_NO_FIT if the disk is too small. A run that passed at its first start also passes when it resumes, since files that it left count as
 * written. Call checkpoint_clean first. */
NODISCARD Status disk_check(const DiskNeed *need);
