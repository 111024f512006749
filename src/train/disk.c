/* See disk.h. A save needs room for one checkpoint more than stays; the end, for the model beside those that stay. */
#include "train/disk.h"

#include "files/file.h"
#include "train/checkpoint.h"
#include "train/output_dir.h"

/* What the run needs beyond what is there. The first start leaves room for an interruption's checkpoint, and for the model even while a
 * checkpoint is written: log and report grow, and where it was let start every later one must be. */
static int64_t more_bytes(const DiskNeed *n, const CheckpointsHeld *held, int64_t *out_most)
{
    int64_t one = n->checkpoint_bytes, there = n->starts_anew ? 0 : held->count;
    if (n->keep > 0 && there > n->keep) there = n->keep; /* the oldest go */
    int64_t kept = n->keep > 0 ? n->keep : there + n->saves_left;
    *out_most = kept + (n->keep > 0 || n->is_first);
    int64_t at_save = n->saves_left ? (*out_most - there) * one : 0;
    if (n->is_first) return at_save + n->final_bytes;
    int64_t replaced = n->goes_on ? output_dir_bytes(n->output_dir) : 0;
    int64_t at_end = n->final_bytes > replaced ? n->final_bytes - replaced : 0;
    if (n->saves_left) at_end += (kept - there) * one;
    return at_save > at_end ? at_save : at_end;
}

Status disk_check(const DiskNeed *n)
{
    CheckpointsHeld held;
    int64_t         most, free_bytes;
    TRY(checkpoint_held(n->output_dir, n->step, n->total, &held));
    int64_t need = more_bytes(n, &held, &most);
    TRY(file_free_bytes(n->output_dir, &free_bytes));
    if (n->starts_anew) free_bytes += held.bytes;
    if (!n->goes_on)
        free_bytes += output_dir_bytes(n->output_dir);
    else if (n->keep > 0 && held.num_before > n->keep)
        free_bytes += (held.num_before - n->keep) * n->checkpoint_bytes;
    FAIL_IF(need > free_bytes, ERR_NO_FIT,
            "too little disk in %s: with up to %lld checkpoints of %.1f MiB and the model the run takes %.1f MiB more, %.1f MiB are free "
            "or will be; "
            "lower save_total_limit, raise save_steps or name another output_dir",
            n->output_dir, (long long)most, (double)n->checkpoint_bytes / (1 << 20), (double)need / (1 << 20),
            (double)free_bytes / (1 << 20));
    return OK;
}
