/* Whether the disk holds what a run is going to write. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct DiskNeed {
    const char *output_dir;
    int64_t     checkpoint_bytes; /* of one */
    int64_t     final_bytes;      /* that the end of the run writes */
    int64_t     step;             /* train steps that were done */
    int64_t     saves_left;       /* checkpoints that are to come, without interruptions */
    int64_t     keep;             /* checkpoints that stay; 0: all */
    bool        is_first;         /* no start of this program was here before */
    bool        goes_on;          /* from a checkpoint of output_dir: all files there stay; else only our checkpoints stay, */
    bool        starts_anew;      /* and with this not even they */
} DiskNeed;

/* ERR_NO_FIT when the disk is too small. A run that was let start may go on, as the files that it left there count. Call checkpoint_clean
 * first. */
NODISCARD Status disk_check(const DiskNeed *need);
