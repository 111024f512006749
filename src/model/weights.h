/* Moves weights between a Hugging Face folder and a Session, by the mapping that each Param carries. */
#pragma once

#include "model/hf_model.h"
#include "model/lora_pairs.h"
#include "passes/compile.h"
#include "passes/peft_names.h"
#include "run/session.h"

/* The tensors in which the file stores a parameter: those of param->hf (as in a model folder) or, if the file has only these, those of
 * param->saved. */
const HfSource *weights_source(const StFile *file, const Param *param);

/* Checks names, shapes, dtypes and sizes of the model's safetensors against the plan's parameters; reads only headers. Errors name the
 * tensor: missing, unexpected, or of another shape. */
NODISCARD Status weights_check(const Plan *plan, HfModel *model);

/* Checks that the model's tensors hold only finite values; reads them all. ERR_INVALID names the first place that isn't finite. pool may be
 * NULL. */
NODISCARD Status weights_check_finite(HfModel *model, ThreadPool *pool);

/* Fills all parameters but those of adapters from the model's safetensors, converting dtypes. Errors: those of weights_check, and values
 * that aren't finite. */
NODISCARD Status weights_load(Session *session, HfModel *model);
/* Like weights_load, but subtracts the products of `pairs` from their layers' weights. NULL: no pairs. */
NODISCARD Status weights_load_less(Session *session, HfModel *model, const LoraPairs *pairs);
/* Reads all elements of a parameter, in the shape of its type, from the model's weights, which are open. */
NODISCARD Status weights_read(const HfModel *model, const Param *param, float *out);
/* Fills only the parameters of the model's namespaces: other models whose outputs its objective reads. */
NODISCARD Status weights_load_namespaces(Session *session, HfModel *model);

/* A recipe may quantise matrices of a quantised folder again, to FP8 codes with one scale. Logs the largest relative error (Euclidean norm)
 * of such a matrix; nothing if there are none. Call it once the matrices are loaded. */
NODISCARD Status weights_tell_requantised(Session *session, const HfModel *model);

/* Sets in `options` the format in which a plan keeps the model's frozen matrices; the weights are open. is_asked: use `format` (NULL: their
 * dtype); else use the folder's format. If the folder has that format (hf_model_has_format), matrices stored in it are kept unchanged;
 * others are made from their values. */
void weights_use_format(const HfModel *model, bool is_asked, const WeightFormat *format, CompileOptions *options);

/* The format to which a plan quantises the folder's values; NULL: none, or matrices are kept as the folder stores them. */
const WeightFormat *weights_made_format(const CompileOptions *options);

/* Bytes of the safetensors that weights_save writes. */
int64_t weights_bytes(const Plan *plan, bool adapters);

/* Writes the parameters (adapters: only those of adapters, under PEFT's names; else all others) as `folder`/`stem`.safetensors or shards
 * with an index. comm: the ranks that write together, each a part; NULL: one process writes. pairs: the pairs that adapters began with;
 * NULL: none. Each pair is written, with b negated, as the second half of its adapter's tensors: this subtracts its product, and doubles
 * the rank. */
NODISCARD Status weights_save(Session *session, const HfModel *model, bool adapters, Comm *comm, const char *folder, const char *stem,
                              int64_t max_shard_bytes, const LoraPairs *pairs);

/* This rank writes bytes [begin, end) of a tensor that has `bytes` bytes in a file. The session's value holds them from byte `at` on. */
typedef struct WeightShare {
    const char *value; /* name in the session */
    size_t      bytes, begin, end, at;
} WeightShare;
enum { WEIGHT_SHARE_CHUNK = 1 << 20 }; /* bytes */
/* Appends a share and skips the rest of the tensor. is_common: each rank holds the whole tensor, and writes a part. *sum (NULL: not wanted)
 * becomes the hash of the written bytes, chunk by chunk: a tensor that one rank writes always has the same chunks, and so the same sum. */
NODISCARD Status weight_share_append(Session *session, Comm *comm, WeightShare share, bool is_common, FileWriter *out, uint64_t *sum);

/* Loads adapter parameters from a PEFT folder's safetensors. If adapters began with a part of the base, loads only their trained halves. */
NODISCARD Status weights_load_adapter(Session *session, const char *folder);
/* Like weights_load_adapter, for the adapters that rows choose among (CompileOptions.row_adapters), in their order. */
NODISCARD Status weights_load_row_adapters(Session *session, const char *const *folders, int count);

/* The tensors that weights_save writes, to be read one by one as floats. */
typedef struct WeightList WeightList;
NODISCARD Status          weight_list_create(Session *session, const HfModel *model, bool adapters, WeightList **out);
void                      weight_list_destroy(WeightList *list); /* NULL is fine */
size_t                    weight_list_count(const WeightList *list);
const StDecl             *weight_list_at(const WeightList *list, size_t index); /* name, shape, dtype in a file */
/* Reads all elements of a tensor, or (`gradient`) of its gradient, as `numel` floats. With several ranks each writes only its own elements,
 * and together they fill `out`. ERR_UNSUPPORTED if the elements are kept as codes, or aren't trained. */
NODISCARD Status weight_list_read(WeightList *list, size_t index, bool gradient, float *out, int64_t numel);

/* Appends `count` values to a file, stored as `dtype`. */
NODISCARD Status weights_append_floats(DType dtype, const float *values, int64_t count, FileWriter *out);

/* Transposes a matrix: from (rows, cols) to (cols, rows). */
void transpose_floats(const float *from, int64_t rows, int64_t cols, float *to);
