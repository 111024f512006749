/* Surogate: the public interface, plain C. Handles are opaque; a handle belongs to one thread at a time, different handles may be
 * used from different threads. Text is UTF-8. Nothing here prints, except that training shows its progress on stderr.
 *
 * Every call that can fail returns sg_status; sg_message() then says what, where, what was expected and what to do. */
#ifndef SUROGATE_H
#define SUROGATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SG_API __attribute__((visibility("default")))
#else
#define SG_API
#endif

/* What went wrong; the command line program's exit code for each is sg_exit_code(). */
typedef enum sg_status {
    SG_OK,
    SG_INTERNAL,
    SG_INVALID, /* a run file, model folder, data set or argument */
    SG_UNSUPPORTED,
    SG_NOT_FOUND,
    SG_IO,
    SG_DEVICE,
    SG_NO_FIT,   /* memory or disk */
    SG_DIVERGED, /* loss or norm not finite */
    SG_CHECKPOINT,
    SG_SAVE,
    SG_INTERRUPTED, /* a signal came; a resumable checkpoint was saved */
    SG_RANK,        /* another rank of the run failed */
} sg_status;

SG_API const char *sg_version(void); /* "0.1.0" */
SG_API const char *sg_message(void); /* of this thread's last failure; valid until the next */
SG_API int         sg_exit_code(sg_status status);
SG_API void        sg_free(void *memory); /* what calls below hand out */

/* ---- training runs ---- */

typedef struct sg_run sg_run;

/* What the command line takes: a run file's path, "key=value" overrides. All problems are in the message at once. */
SG_API sg_status sg_run_open(const char *const *args, size_t num_args, sg_run **out_run);
SG_API void      sg_run_close(sg_run *run); /* NULL is fine */

/* Memory, work and time of a step as JSON (docs: surogate plan --json), for a named GPU or (NULL) this machine's device. Loads nothing.
 * *out_json is the caller's, for sg_free. */
SG_API sg_status sg_run_plan(sg_run *run, const char *gpu, char **out_json);

typedef struct sg_outcome {
    bool    already_finished; /* the output folder held this run, finished; nothing was done */
    int64_t steps;
    double  loss, eval_loss; /* last ones; NaN: none */
} sg_outcome;

/* Trains as the run file says, samples and all; the model ends up in its output_dir. Resumes by itself what an earlier call left
 * unfinished. */
SG_API sg_status sg_run_train(sg_run *run, sg_outcome *out_outcome);

/* ---- models ---- */

typedef struct sg_model sg_model;

/* A model folder, or an adapter folder that names its base. adapter: a PEFT folder over it, or NULL. device: "auto" (or NULL), "cpu" or
 * "cuda". threads of the CPU; 0: all cores. */
SG_API sg_status sg_model_open(const char *dir, const char *adapter, const char *device, int threads, sg_model **out_model);
SG_API void      sg_model_close(sg_model *model); /* NULL is fine */

/* Ids of a text as the model is fed it. *out_ids (num) is the caller's, for sg_free. */
SG_API sg_status sg_model_encode(sg_model *model, const char *text, size_t len, int32_t **out_ids, size_t *out_num);

/* The text of ids, NUL-terminated, special tokens left out; the caller's, for sg_free. */
SG_API sg_status sg_model_decode(sg_model *model, const int32_t *ids, size_t num, char **out_text);

/* losses[i] = -ln p(ids[i+1] | before it), num - 1 of them. num >= 2. */
SG_API sg_status sg_model_losses(sg_model *model, const int32_t *ids, size_t num, float *losses);

typedef struct sg_sampling {
    double   temperature; /* 0: the likeliest token */
    int64_t  top_k;       /* 0: all */
    double   top_p;       /* 0 or 1: all */
    uint64_t seed;
} sg_sampling;

/* Up to max_tokens ids that go on from ids; ends before an end-of-text token. *out_ids is the caller's, for sg_free. */
SG_API sg_status sg_model_generate(sg_model *model, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                                   int32_t **out_ids, size_t *out_num);

#ifdef __cplusplus
}
#endif
#endif
