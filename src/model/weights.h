/* Weights between a Hugging Face folder and a Session, by the mapping that each Param carries. */
#pragma once

#include "model/hf_model.h"
#include "model/lora_pairs.h"
#include "passes/compile.h"
#include "passes/peft_names.h"
#include "run/session.h"

/* How the file holds a parameter: as a model folder does, or as it is written where the file has that alone. */
const HfSource *weights_source(const StFile *file, const Param *param);

/* Names, shapes, dtypes and sizes of the model's safetensors against the plan's parameters; reads headers only. Errors name the
 * tensor: missing, unexpected, of another shape. */
NODISCARD Status weights_check(const Plan *plan, HfModel *model);

/* Whether the model's tensors hold only finite values; reads them all. ERR_INVALID names the first place that doesn't. pool may be
 * NULL. */
NODISCARD Status weights_check_finite(HfModel *model, ThreadPool *pool);

/* Fills every parameter that isn't an adapter's from the model's safetensors, converting dtypes. Errors as
 * weights_check's, and values that aren't finite. */
NODISCARD Status weights_load(Session *session, HfModel *model);
/* The same; layers lose the pairs that adapters begin with. NULL: there are none. */
NODISCARD Status weights_load_less(Session *session, HfModel *model, const LoraPairs *pairs);
/* All elements of a parameter, as its type has them, of the model's weights, which are open. */
NODISCARD Status weights_read(const HfModel *model, const Param *param, float *out);
/* The same of the other models that its objective reads alone. */
NODISCARD Status weights_load_namespaces(Session *session, HfModel *model);

/* Says how far off the matrices of a quantised folder are that a recipe keeps in FP8 codes with one scale, once they are loaded: a line
 * with the largest relative error of any, in the Euclidean norm. Nothing where there are none. */
NODISCARD Status weights_tell_requantised(Session *session, const HfModel *model);

/* What a plan keeps the model's frozen matrices in, its weights open: `format` where one is asked for (NULL: their dtype), else what the
 * folder has them in. Those of a quantised folder stay as they are where that is the format's kind; one that isn't stored so is read as
 * numbers. */
void weights_use_format(const HfModel *model, bool is_asked, const WeightFormat *format, CompileOptions *options);

/* The format that a plan makes of the numbers in the folder; NULL: none, or they are kept as the folder has them. */
const WeightFormat *weights_made_format(const CompileOptions *options);

/* Bytes of the safetensors that weights_save writes. */
int64_t weights_bytes(const Plan *plan, bool adapters);

/* Writes the parameters (adapters: only theirs, under PEFT's names; else all others) as `folder`/`stem`.safetensors or
 * shards with an index. comm: of the ranks that write together, each a part; NULL: there is one. pairs: what the adapters began with, which
 * is taken off again beside them, so that each has twice its rank; NULL: nothing. */
NODISCARD Status weights_save(Session *session, const HfModel *model, bool adapters, Comm *comm, const char *folder, const char *stem,
                              int64_t max_shard_bytes, const LoraPairs *pairs);

/* Bytes [begin, end) of a tensor of `bytes` in a file are a rank's to write: the value's from byte `at` on. */
typedef struct WeightShare {
    const char *value; /* of the session */
    size_t      bytes, begin, end, at;
} WeightShare;
enum { WEIGHT_SHARE_CHUNK = 1 << 20 }; /* bytes */
/* Appends a share and skips the rest of the tensor. is_common: each rank has all of it, and writes a part. *sum (NULL: none) becomes the
 * hash of what was written, chunk by chunk, so that the sum of a tensor that one rank writes is always of the same chunks. */
NODISCARD Status weight_share_append(Session *session, Comm *comm, WeightShare share, bool is_common, FileWriter *out, uint64_t *sum);

/* Loads adapter parameters from a PEFT folder's safetensors; where they began with a part of the base, what was trained of those. */
NODISCARD Status weights_load_adapter(Session *session, const char *folder);
/* The same of the adapters that rows choose among (CompileOptions.row_adapters), in their order. */
NODISCARD Status weights_load_row_adapters(Session *session, const char *const *folders, int count);

/* The tensors that weights_save writes, to be read one by one as floats. */
typedef struct WeightList WeightList;
NODISCARD Status          weight_list_create(Session *session, const HfModel *model, bool adapters, WeightList **out);
void                      weight_list_destroy(WeightList *list); /* NULL is fine */
size_t                    weight_list_count(const WeightList *list);
const StDecl             *weight_list_at(const WeightList *list, size_t index); /* name, dtype in a file, shape */
/* All elements, or (`gradient`) those of its gradient, of `numel` floats; with several ranks those that are this one's to tell: together
 * they fill it. ERR_UNSUPPORTED where they are kept in codes or not trained. */
NODISCARD Status weight_list_read(WeightList *list, size_t index, bool gradient, float *out, int64_t numel);

/* Appends `count` values to a file, stored as `dtype`. */
NODISCARD Status weights_append_floats(DType dtype, const float *values, int64_t count, FileWriter *out);

/* to (cols, rows) = from (rows, cols) turned. */
void transpose_floats(const float *from, int64_t rows, int64_t cols, float *to);
