/* Growing a model works file to file, as merging does: every tensor streams through, and those with a row for each token get more rows. The
 * IR tells which tensors these are: they have more rows if the vocabulary is larger. */
#include "model/grow.h"

#include "base/hash.h"
#include "base/json_edit.h"
#include "base/log.h"
#include "base/scoped.h"
#include "files/folder.h"
#include "files/hub.h"
#include "files/json_file.h"
#include "model/hf_model.h"
#include "model/model_ir.h"

#include <stdlib.h>
#include <string.h>

typedef struct Grower {
    Arena           *arena;
    HfModel         *model;
    JsonValue        config; /* the model's config with the new number of rows */
    int64_t          rows;   /* rows that the new vocabulary has */
    const StTensor **tensors;
    int64_t         *new_rows; /* rows to add to each tensor; 0: none */
    StDecl          *decls;
    size_t           count;
} Grower;

/* ---- tensors ---- */

/* out: the mean of the tensor's rows, in the tensor's dtype. */
static Status mean_row(const StTensor *tensor, void *out)
{
    int64_t rows = tensor->dim[0], cols = tensor->numel / rows;
    DType   dtype;
    CHECK(st_dtype_to(tensor->dtype, &dtype));
    SCOPED(scoped_free) double *sum = calloc_or_end((size_t)cols, sizeof *sum);
    SCOPED_ARRAY(float, row, cols);
    for (int64_t r = 0; r < rows; r++) {
        TRY(st_to_f32(tensor, r * cols, cols, row));
        for (int64_t c = 0; c < cols; c++) sum[c] += (double)row[c];
    }
    for (int64_t c = 0; c < cols; c++) row[c] = (float)(sum[c] / (double)rows);
    dtype_encode(dtype, row, cols, out);
    return OK;
}

static Status append_rows(const StTensor *tensor, int64_t count, FileWriter *out)
{
    size_t bytes = tensor->bytes / (size_t)tensor->dim[0];
    SCOPED_ARRAY(char, stored, bytes);
    TRY(mean_row(tensor, stored));
    for (int64_t r = 0; r < count; r++) TRY(file_writer_append(out, stored, bytes));
    return OK;
}

static Status append_tensor(void *context, size_t index, FileWriter *out)
{
    const Grower   *grower = context;
    const StTensor *tensor = grower->tensors[index];
    TRY(file_writer_append(out, tensor->data, tensor->bytes));
    return grower->new_rows[index] ? append_rows(tensor, grower->new_rows[index], out) : OK;
}

/* Whether the tensor is a tied head's copy of the embedding, which isn't written. */
static bool is_copy(const HfModel *model, const char *name)
{
    for (int i = 0; i < model->num_ties; i++)
        if (strcmp(model->ties[i].untied, name) == 0) return true;
    return false;
}

static void list_tensors(Grower *grower)
{
    const StFile *file = grower->model->weights;
    grower->tensors = arena_array(grower->arena, const StTensor *, st_count(file));
    grower->new_rows = arena_array(grower->arena, int64_t, st_count(file));
    grower->decls = arena_array(grower->arena, StDecl, st_count(file));
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *tensor = st_at(file, i);
        if (is_copy(grower->model, tensor->name)) continue;
        grower->decls[grower->count] = st_decl(tensor->name, tensor->dtype, tensor->ndim, tensor->dim, false);
        grower->tensors[grower->count++] = tensor;
    }
}

static Status grow_tensor(Grower *grower, const Param *param, int64_t more)
{
    const HfSource *hf = &param->hf;
    size_t          i = 0;
    DType           dtype;
    while (i < grower->count && strcmp(grower->tensors[i]->name, hf->names[0]) != 0) i++;
    FAIL_IF(hf->kind != HF_WHOLE || i == grower->count || !st_dtype_to(grower->tensors[i]->dtype, &dtype), ERR_UNSUPPORTED,
            "%s has a row for each token, and isn't one tensor %s of F32, BF16 or F16: new tokens aren't supported here", param->name,
            hf->names[0]);
    grower->new_rows[i] = more;
    grower->decls[i].dim[0] += more;
    return OK;
}

/* Finds the weights that have more rows in the larger model. */
static Status find_grown(Grower *grower)
{
    Graph  *now, *then;
    HfModel larger = *grower->model;
    larger.config = grower->config;
    TRY(hf_model_bind(grower->arena, grower->model, DT_F32, &now));
    TRY(hf_model_bind(grower->arena, &larger, DT_F32, &then));
    for (int i = 0; i < now->num_params; i++) {
        const Param *param = now->params[i], *grown = then->params[i];
        int64_t      more = grown->type.dim[0] - param->type.dim[0];
        bool         is_same = param->type.ndim == grown->type.ndim;
        for (int k = 1; k < param->type.ndim; k++) is_same = is_same && param->type.dim[k] == grown->type.dim[k];
        FAIL_IF(!is_same || more < 0, ERR_UNSUPPORTED, "%s depends on the vocabulary otherwise than by its rows", param->name);
        if (more) TRY(grow_tensor(grower, param, more));
    }
    return OK;
}

/* ---- the folder ---- */

static Status set_rows(Grower *grower)
{
    const HfModel *model = grower->model;
    FAIL_IF(!model->vocab_key, ERR_UNSUPPORTED, "%s: no key of config.json is the size of the vocabulary", model->dir);
    grower->config = json_copy_object(grower->arena, &model->config, 1);
    json_set(&grower->config, str_of(model->vocab_key), (JsonValue){.type = JSON_INT, .integer = grower->rows});
    return OK;
}

static Status write_config(const Grower *grower, const char *folder)
{
    SCOPED_ARENA(arena);
    TRY(json_file_write(arena_printf(&arena, "%s/config.json", folder), &grower->config));
    return model_ir_write(grower->model->module, folder);
}

static Status write_tokenizer(Arena *arena, const char *dir, const GrownTokenizer *grown, const char *folder)
{
    TRY(hf_copy_side_files(dir, folder));
    if (grown->json.data) TRY(file_write_atomic(arena_printf(arena, "%s/tokenizer.json", folder), grown->json.data, grown->json.len));
    if (grown->config.data)
        TRY(file_write_atomic(arena_printf(arena, "%s/tokenizer_config.json", folder), grown->config.data, grown->config.len));
    return OK;
}

static Status choose_tensors(Grower *grower)
{
    FAIL_IF(grower->model->format != QUANTISED_NONE, ERR_UNSUPPORTED,
            "%s is quantised, and gets no new tokens; take the model as it was before, and qlora where the base is to be in few bits",
            grower->model->dir);
    list_tensors(grower);
    return find_grown(grower);
}

static Status write_weights(Grower *grower, const char *folder)
{
    enum { MOST_BYTES = 2000000000 }; /* most bytes of one file */
    TRY(choose_tensors(grower));
    return st_write_folder(folder, "model", grower->decls, grower->count, MOST_BYTES, append_tensor, grower);
}

static Status write_folder(HfModel *model, int64_t rows, const GrownTokenizer *grown, const char *folder)
{
    SCOPED_ARENA(arena);
    Grower grower = {.arena = &arena, .model = model, .rows = rows};
    bool   has_weights; /* false: the model is trained from scratch */
    TRY(hf_model_has_weights(model, &has_weights));
    if (has_weights) TRY(hf_model_open_weights(model)); /* may untie its head in the config */
    TRY(set_rows(&grower));
    if (has_weights) TRY(write_weights(&grower, folder));
    TRY(write_tokenizer(&arena, model->dir, grown, folder));
    return write_config(&grower, folder);
}

/* ---- in memory ---- */

/* Elements of a tensor with added rows: its own elements, then the mean row again and again. */
static void grown_to_f32(const StMade *made, int64_t first, int64_t count, float *dst)
{
    const StTensor *tensor = made->parts;
    int64_t         own = first >= tensor->numel ? 0 : tensor->numel - first < count ? tensor->numel - first : count;
    int64_t         cols = tensor->numel / tensor->dim[0];
    DType           dtype;
    CHECK(st_dtype_to(tensor->dtype, &dtype));
    if (own) CHECK(st_to_f32(tensor, first, own, dst) == OK); /* find_grown has checked its dtype */
    if (own == count) return;
    SCOPED_ARRAY(char, stored, dtype_bytes(dtype, cols));
    SCOPED_ARRAY(float, row, cols);
    CHECK(mean_row(tensor, stored) == OK);
    dtype_decode(dtype, stored, cols, row);
    for (int64_t i = own; i < count; i++) dst[i] = row[(first + i) % cols];
}

static bool grown_is_tame(const StMade *made)
{
    (void)made;
    return false;
}

/* Sets the model's tensors to those with added rows. Copies of a tied head are left out, as in a written folder. */
static Status set_tensors(const Grower *grower)
{
    Arena    *arena = grower->model->arena;
    StTensor *tensors = arena_array(arena, StTensor, grower->count + 1);
    for (size_t i = 0; i < grower->count; i++) {
        tensors[i] = *grower->tensors[i];
        if (!grower->new_rows[i]) continue;
        StTensor *part = arena_new(arena, StTensor);
        StMade   *made = arena_new(arena, StMade);
        *part = *grower->tensors[i];
        *made = (StMade){.parts = part, .num_parts = 1, .to_f32 = grown_to_f32, .is_tame = grown_is_tame};
        tensors[i].numel += part->numel / part->dim[0] * grower->new_rows[i];
        tensors[i].dim[0] += grower->new_rows[i];
        tensors[i].data = NULL;
        tensors[i].bytes = 0;
        tensors[i].made = made;
    }
    return st_set_tensors(grower->model->weights, tensors, grower->count);
}

/* ---- the cache ---- */

static int64_t rows_wanted(const HfModel *model, const GrownTokenizer *grown, int64_t multiple)
{
    int64_t tokens = grown->num_tokens, step = multiple > 1 ? multiple : 1, want = (tokens + step - 1) / step * step;
    return want > model->vocab_size ? want : model->vocab_size;
}

/* Adds the fingerprints of a folder's files, with their names, to *sum. */
static Status sum_files(Arena *arena, const char *dir, uint64_t *sum)
{
    const char **names;
    size_t       count;
    TRY(file_list(arena, dir, &names, &count));
    for (size_t i = 0; i < count; i++) {
        uint64_t hash;
        TRY(file_fingerprint(arena_printf(arena, "%s/%s", dir, names[i]), hash_bytes(names[i], strlen(names[i]), 0), &hash));
        *sum += hash;
    }
    return OK;
}

/* *out: a hash that changes with the files, with any write to them, and with the tokens. */
static Status fingerprint(Arena *arena, const char *dir, const NewTokens *tokens, uint64_t *out)
{
    uint64_t    hash = hash_bytes(&tokens->multiple, sizeof tokens->multiple, 0), sum = 0;
    const char *templates = arena_printf(arena, "%s/%s", dir, HF_TEMPLATE_FOLDER);
    bool        has_templates;
    TRY(file_is_dir(templates, &has_templates));
    TRY(sum_files(arena, dir, &sum));
    if (has_templates) TRY(sum_files(arena, templates, &sum));
    hash = hash_bytes(&sum, sizeof sum, hash);
    for (int i = 0; i < tokens->num_special; i++) hash = hash_bytes(tokens->special[i], strlen(tokens->special[i]) + 1, hash + 1);
    for (int i = 0; i < tokens->num_tokens; i++) hash = hash_bytes(tokens->tokens[i], strlen(tokens->tokens[i]) + 1, hash + 2);
    *out = hash;
    return OK;
}

/* A folder to make. */
typedef struct Growth {
    HfModel              *model;
    int64_t               rows; /* rows that the new vocabulary has */
    const GrownTokenizer *grown;
    const char           *folder; /* for messages */
} Growth;

static Status make(void *context, const char *folder)
{
    const Growth *growth = context;
    long long     before = (long long)growth->model->vocab_size, after = (long long)growth->rows;
    if (after > before)
        log_info("%s: %d new tokens; %lld rows of embedding and head become %lld, each new one the mean of the old; written into %s",
                 growth->model->dir, growth->grown->num_added, before, after, growth->folder);
    else
        log_info("%s: %d new tokens, for which its embedding has rows: they stay as they are; written into %s", growth->model->dir,
                 growth->grown->num_added, growth->folder);
    return write_folder(growth->model, growth->rows, growth->grown, folder);
}

static Status make_in_cache(Arena *arena, HfModel *model, const NewTokens *tokens, const GrownTokenizer *grown, const char **out_dir)
{
    Growth   growth = {.model = model, .rows = rows_wanted(model, grown, tokens->multiple), .grown = grown};
    uint64_t hash;
    TRY(fingerprint(arena, model->dir, tokens, &hash));
    TRY(hub_derived_path(arena, GROWN_PREFIX, hash, model->dir, out_dir));
    growth.folder = *out_dir;
    return folder_make_once(arena, *out_dir, "config.json", "waiting for another process that adds the tokens", make, &growth);
}

Status grow_model(HfModel *model, const NewTokens *tokens)
{
    SCOPED_ARENA(arena);
    GrownTokenizer grown;
    Grower         grower = {.arena = &arena, .model = model};
    TRY(grow_tokenizer(model->arena, model->dir, tokens, &grown));
    grower.rows = rows_wanted(model, &grown, tokens->multiple);
    if (grower.rows == model->vocab_size && !grown.json.data) return OK;
    TRY(set_rows(&grower));
    if (model->weights) TRY(choose_tensors(&grower));
    if (model->weights) TRY(set_tensors(&grower));
    return hf_model_set_config(model, &grower.config);
}

Status grow_local_dir(Arena *arena, const char *dir, const NewTokens *tokens, const char **out_dir)
{
    GrownTokenizer                     grown;
    SCOPED(hf_model_close_at) HfModel *model = NULL;
    *out_dir = dir;
    TRY(grow_tokenizer(arena, dir, tokens, &grown));
    TRY(hf_model_open(arena, dir, &model));
    bool is_enough = rows_wanted(model, &grown, tokens->multiple) == model->vocab_size;
    return is_enough && !grown.json.data ? OK : make_in_cache(arena, model, tokens, &grown, out_dir);
}
