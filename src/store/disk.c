/* See disk.h. During a save there is one checkpoint more than the number that is kept. At the end the model is written beside the kept
 * checkpoints. */
#include "store/disk.h"

#include "files/file.h"
#include "store/checkpoint.h"
#include "store/output_dir.h"

/* The bytes that the run needs beyond those already written. Checkpoints of later steps than `step` don't count: they are set aside. A
 * first start asks for extra room: for the checkpoint of an interruption, and for the model together with a checkpoint being written. So
 * each later start has enough room, although log and report have grown. */
static double more_bytes(const DiskNeed *n, const CheckpointsHeld *held, int64_t there_bytes, int64_t *out_most)
{
    double  one = (double)n->checkpoint_bytes; /* double: all checkpoints of a long run may exceed an int64 */
    int64_t there = n->starts_anew ? 0 : held->count;
    if (n->keep > 0 && there > n->keep) there = n->keep; /* the oldest are removed */
    int64_t kept = n->keep > 0 ? n->keep : there + n->saves_left;
    *out_most = kept + (n->keep > 0 || n->is_first);
    double at_save = n->saves_left ? (double)(*out_most - there) * one : 0;
    if (n->is_first) return at_save + (double)n->final_bytes;
    int64_t replaced = n->goes_on ? there_bytes : 0;
    double  at_end = n->final_bytes > replaced ? (double)(n->final_bytes - replaced) : 0;
    if (n->saves_left) at_end += (double)(kept - there) * one;
    return at_save > at_end ? at_save : at_end;
}

Status disk_check(const DiskNeed *n)
{
    CheckpointsHeld held;
    int64_t         most, free_bytes, there_bytes;
    TRY(checkpoint_held(n->output_dir, n->step, &held));
    TRY(output_dir_bytes(n->output_dir, &there_bytes));
    double need = more_bytes(n, &held, there_bytes, &most);
    TRY(file_free_bytes(n->output_dir, &free_bytes));
    if (n->starts_anew) free_bytes += held.bytes;
    if (!n->goes_on)
        free_bytes += there_bytes;
    else if (n->keep > 0 && held.count > n->keep)
        free_bytes += (held.count - n->keep) * n->checkpoint_bytes;
    FAIL_IF(
        need > (double)free_bytes, ERR_NO_FIT,
        "too little disk in %s: the run takes %.1f MiB more, for up to %lld checkpoints of %.1f MiB and the model; %.1f MiB are free or "
        "will be. Lower save_total_limit, raise save_steps or name another output_dir",
        n->output_dir, need / (1 << 20), (long long)most, (double)n->checkpoint_bytes / (1 << 20), (double)free_bytes / (1 << 20));
    return OK;
}
