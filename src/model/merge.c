/* Merging works file to file: each tensor of the base streams through, and those with a pair in the adapter get the product added. One
 * matrix at a time is held whole. */
#include "model/merge.h"

#include "base/json_edit.h"
#include "base/scoped.h"
#include "files/json_file.h"
#include "model/make_again.h"
#include "model/weights.h"
#include "model/peft_tokens.h"
#include "passes/adapt_tokens.h"
#include "passes/adapt_whole.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* A tensor to write. */
typedef struct Source {
    const StTensor   *tensor;        /* the base's tensor; NULL: `stored` belongs to no matrix, and is copied */
    const char       *module;        /* path of the linear layer whose weight this is, which may be adapted; NULL: none */
    const StTensor   *a, *b;         /* halves of that layer's adapter; NULL: none */
    const StTensor   *magnitude;     /* DoRA: lengths that the rows of the sum get; NULL: the rows aren't scaled */
    const StTensor   *whole;         /* the adapter's tensor that replaces this one; NULL: none */
    const StTensor   *rows;          /* the adapter's rows that replace some rows; NULL: none */
    const LoraTokens *tokens;        /* the tokens of these rows */
    bool              is_quantised;  /* the adapter was trained over the values that `format` gives back */
    bool              is_transposed; /* the model's parameter is the transpose of the tensor */
    const StTensor   *stored; /* a part of a quantised matrix, as the folder stores it, to be written quantised; NULL: values are written */
    int               part;   /* which part of the format `stored` holds; -1: none, it is copied */
} Source;

typedef struct Merger {
    const StFile       *base, *adapter;
    Source             *sources; /* one for each tensor to write, in the order of the declarations */
    size_t              num_sources;
    const WeightFormat *format; /* format of matrices during the adapter's training; NULL: as the base stores them */
    StTensor            head;   /* the embedding under the head's name, if the base has no other head */
    const LoraOptions  *lora;
    ThreadPool         *pool;
    Arena               arena;
    StFile             *folder; /* the base's folder, its tensors as stored; NULL: the merged model isn't quantised */
    const StTensor     *made;   /* the matrix whose parts are in `parts`; NULL: none */
    void               *parts[FORMAT_MAX_PARTS];
    Arena               parts_arena;
} Merger;

/* A product to add to a matrix: w (rows, cols) += scale b (rows, r) a (r, cols). */
typedef struct Product {
    float       *w;
    const float *a, *b;
    int64_t      rows, cols, r;
    float        scale;
} Product;

static void product_row(void *context, int64_t row, int worker)
{
    (void)worker;
    Product *p = context;
    float   *w = p->w + row * p->cols;
    for (int64_t k = 0; k < p->r; k++) {
        float        factor = p->scale * p->b[row * p->r + k];
        const float *a = p->a + k * p->cols;
        for (int64_t c = 0; c < p->cols; c++) w[c] += factor * a[c];
    }
}

/* The dtype of a merged tensor: the base's, or F32 if that is F64. */
static DType merged_dtype(const StTensor *w)
{
    DType dtype;
    return st_dtype_to(w->dtype, &dtype) ? dtype : DT_F32;
}

static Status check_values(const StTensor *like, const float *values)
{
    DType   dtype = merged_dtype(like);
    int64_t at = dtype_first_unfit(dtype, values, like->numel);
    FAIL_IF(at < like->numel, ERR_INVALID,
            "%s: merged, tensor %s has a value of %g, which is no finite number in %s; convert the base to a wider dtype first", like->path,
            like->name, values[at], dtype_info(dtype)->name);
    return OK;
}

static Status append_floats(const StTensor *like, const float *values, FileWriter *out)
{
    TRY(check_values(like, values));
    return weights_append_floats(merged_dtype(like), values, like->numel, out);
}

static Status check_pair(const Source *source, const StTensor *a, const StTensor *b)
{
    const StTensor *w = source->tensor;
    int             out = source->is_transposed, in = !out;
    bool            fits =
        a->ndim == 2 && b->ndim == 2 && w->ndim == 2 && a->dim[0] == b->dim[1] && b->dim[0] == w->dim[out] && a->dim[1] == w->dim[in];
    FAIL_IF(!fits, ERR_INVALID, "%s: the shapes of %s and its pair don't fit tensor %s of the base", a->path, a->name, w->name);
    TRY(st_check_range(a, DT_F32));
    return st_check_range(b, DT_F32);
}

static Status read_whole(const Source *source, float *values)
{
    const StTensor *w = source->tensor, *whole = source->whole;
    bool            fits = w->ndim == whole->ndim && memcmp(w->dim, whole->dim, sizeof w->dim[0] * (size_t)w->ndim) == 0;
    FAIL_IF(!fits, ERR_INVALID, "%s: %s has another shape than tensor %s of the base; is this the model that was adapted?", whole->path,
            whole->name, w->name);
    TRY(st_check_range(whole, DT_F32));
    return st_to_f32(whole, 0, whole->numel, values);
}

static Status read_rows(const Source *source, float *values)
{
    int64_t cols = source->rows->dim[1];
    TRY(peft_check_tokens(source->rows, source->tokens, source->tensor));
    for (int i = 0; i < source->tokens->num; i++) TRY(st_to_f32(source->rows, i * cols, cols, values + source->tokens->ids[i] * cols));
    return OK;
}

/* Reads the weight under the adapter: the file's values, what the format gives back for these, or the adapter's tensor that replaces it. */
static Status read_base(const Merger *merger, const Source *source, float *values)
{
    const StTensor *w = source->tensor;
    if (source->whole) return read_whole(source, values);
    TRY(st_check_range(w, DT_F32));
    TRY(st_to_f32(w, 0, w->numel, values));
    if (source->rows) TRY(read_rows(source, values));
    return source->is_quantised ? weight_make_again(merger->format, w->dim[0], w->dim[1], values, merger->pool) : OK;
}

/* values += scale b a, or its transpose. factors: scratch for a and b, and for their transposes. */
static Status add_product(const Merger *merger, const Source *source, const StTensor *a, const StTensor *b, float *values, float *factors)
{
    const StTensor   *w = source->tensor;
    const LoraModule *module = lora_find_module(merger->lora, source->module);
    float             scale = (float)lora_scale(merger->lora, module->r, module->alpha);
    Product           product = {values, factors, factors + a->numel, w->dim[0], w->dim[1], a->dim[0], scale};
    TRY(st_to_f32(a, 0, a->numel, factors));
    TRY(st_to_f32(b, 0, b->numel, factors + a->numel));
    if (source->is_transposed) { /* (b a)^T = a^T b^T */
        float *a_turned = factors + a->numel + b->numel, *b_turned = a_turned + a->numel;
        transpose_floats(factors, a->dim[0], a->dim[1], a_turned);
        transpose_floats(factors + a->numel, b->dim[0], b->dim[1], b_turned);
        product.a = b_turned;
        product.b = a_turned;
    }
    pool_run(merger->pool, product.rows, product_row, &product);
    return OK;
}

/* Scales the rows of the layer's weight (columns, if it is transposed) to the lengths in the adapter's magnitudes. */
static Status set_magnitude(const Source *source, float *values)
{
    const StTensor *w = source->tensor;
    int64_t         rows = w->dim[source->is_transposed], cols = w->dim[!source->is_transposed];
    int64_t         to_row = source->is_transposed ? 1 : cols, to_col = source->is_transposed ? rows : 1;
    FAIL_IF(source->magnitude->ndim != 1 || source->magnitude->dim[0] != rows, ERR_INVALID,
            "%s: %s: expected %lld numbers, as tensor %s has", source->magnitude->path, source->magnitude->name, (long long)rows, w->name);
    TRY(st_check_range(source->magnitude, DT_F32));
    for (int64_t row = 0; row < rows; row++) {
        float *at = values + row * to_row, length;
        double squares = 0;
        for (int64_t c = 0; c < cols; c++) squares += (double)at[c * to_col] * (double)at[c * to_col];
        TRY(st_to_f32(source->magnitude, row, 1, &length));
        double factor = squares > 0 ? (double)length / sqrt(squares) : 0;
        for (int64_t c = 0; c < cols; c++) at[c * to_col] = (float)(factor * (double)at[c * to_col]);
    }
    return OK;
}

/* Quantises a merged matrix into merger->parts. They stay until another matrix is quantised: a matrix's parts often are neighbours in the
 * file. */
static Status quantise(Merger *merger, const StTensor *w, const float *values)
{
    const WeightFormat *format = quantised_weight_format(quantised_of(w));
    TRY(check_values(w, values));
    arena_deinit(&merger->parts_arena);
    merger->made = NULL;
    TRY(weight_quantise(&merger->parts_arena, format, w->dim[0], w->dim[1], values, merger->pool, merger->parts));
    merger->made = w;
    return OK;
}

/* Computes a matrix that the adapter changes, and quantises it or appends it to `out`. */
static Status make_changed(Merger *merger, const Source *source, FileWriter *out)
{
    const StTensor *w = source->tensor, *a = source->a, *b = source->b;
    if (a) TRY(check_pair(source, a, b));
    SCOPED(scoped_free) float *values = malloc((size_t)(w->numel + (a ? 2 * (a->numel + b->numel) : 0)) * sizeof *values);
    FAIL_IF(!values, ERR_NO_FIT, "no memory for tensor %s", w->name);
    TRY(read_base(merger, source, values));
    if (a) TRY(add_product(merger, source, a, b, values, values + w->numel));
    if (source->magnitude) TRY(set_magnitude(source, values));
    return source->stored ? quantise(merger, w, values) : append_floats(w, values, out);
}

/* Appends a quantised tensor as values. */
static Status append_made(const StTensor *w, FileWriter *out)
{
    enum { CHUNK = 1 << 18 };
    SCOPED_ARRAY(float, values, CHUNK);
    TRY(st_check_range(w, DT_F32));
    for (int64_t first = 0; first < w->numel; first += CHUNK) {
        StTensor piece = *w;
        piece.numel = w->numel - first < CHUNK ? w->numel - first : CHUNK;
        TRY(st_to_f32(w, first, piece.numel, values));
        TRY(append_floats(&piece, values, out));
    }
    return OK;
}

static bool is_changed(const Source *source)
{
    if (!source->tensor || (source->stored && source->part < 0)) return false;
    return source->is_quantised || source->a || source->whole || source->rows;
}

static Status append_tensor(void *context, size_t index, FileWriter *out)
{
    Merger         *merger = context;
    const Source   *source = &merger->sources[index];
    const StTensor *w = source->tensor, *as_is = source->stored ? source->stored : w;
    if (!is_changed(source)) return as_is->made ? append_made(w, out) : file_writer_append(out, as_is->data, as_is->bytes);
    if (!source->stored) return make_changed(merger, source, out);
    if (merger->made != w) TRY(make_changed(merger, source, out));
    return quantised_append(quantised_of(w), source->stored, source->part, merger->parts[source->part], out);
}

/* Finds which sources the adapter changes. Every tensor of the adapter must belong to a source. */
static Status find_halves(Merger *merger)
{
    size_t count = st_count(merger->adapter);
    bool  *used = arena_array(&merger->arena, bool, count + 1);
    for (size_t i = 0; i < merger->num_sources; i++) {
        Source *source = &merger->sources[i];
        source->a = peft_find(merger->adapter, source->module, PEFT_END_A);
        source->b = peft_find(merger->adapter, source->module, PEFT_END_B);
        if (merger->lora->use_dora) source->magnitude = peft_find(merger->adapter, source->module, PEFT_END_MAGNITUDE);
        const StTensor *const taken[] = {source->a, source->b, source->magnitude, source->whole, source->rows};
        for (size_t k = 0; k < sizeof taken / sizeof *taken; k++)
            if (taken[k]) used[taken[k] - st_at(merger->adapter, 0)] = true;
        FAIL_IF(source->a && source->whole, ERR_INVALID, "%s: %s and its pair adapt a weight that was trained whole (modules_to_save)",
                source->a->path, source->a->name);
    }
    for (size_t i = 0; i < count; i++)
        FAIL_IF(!used[i], ERR_INVALID, "%s: %s belongs to no tensor of the base; is this the model that was adapted?",
                st_at(merger->adapter, i)->path, st_at(merger->adapter, i)->name);
    return OK;
}

/* Declares the tensors as the base has them. Changed ones get merged_dtype, or their matrix's format. */
static void declare(const Merger *merger, StDecl *decls)
{
    for (size_t i = 0; i < merger->num_sources; i++) {
        const Source   *source = &merger->sources[i];
        const StTensor *w = source->tensor, *like = source->stored ? source->stored : w;
        StDecl         *decl = &decls[i];
        *decl = st_decl(like->name, like->dtype, like->ndim, like->dim, false);
        if (!is_changed(source)) continue;
        if (source->stored)
            quantised_declare(quantised_of(w), source->part, decl);
        else
            decl->dtype = st_dtype_from(merged_dtype(w));
    }
}

/* The source that writes the base's tensor of this parameter (of several tensors, the first); NULL: the base doesn't have the tensor. */
static Source *source_of(Merger *merger, const Param *param)
{
    const StTensor *tensor = st_find(merger->base, weights_source(merger->base, param)->names[0]);
    return tensor ? &merger->sources[tensor - st_at(merger->base, 0)] : NULL;
}

/* Marks the tensors that the adapter's training kept in merger->format. */
static Status mark_quantised(Merger *merger, const Graph *graph)
{
    for (int i = 0; i < graph->num_params; i++) {
        Param *param = graph->params[i];
        param->trained = false;
        if (!weight_is_quantised(param)) continue;
        FAIL_IF(weights_source(merger->base, param)->kind != HF_WHOLE, ERR_UNSUPPORTED,
                "%s is a part of a tensor, or several, and its base is quantised: merging that isn't supported", param->name);
        Source *source = source_of(merger, param);
        if (source) source->is_quantised = true;
    }
    return OK;
}

/* Refuses to merge an adapter into a weight that another op reads too: only the linear layer is meant to change. */
static Status check_readers(const Merger *merger, const Graph *graph, const Param *param)
{
    bool        is_adapted = param->is_linear && param->module && lora_find_module(merger->lora, param->module);
    const Node *reader = is_adapted ? lora_other_reader(graph, param) : NULL;
    FAIL_IF(reader, ERR_UNSUPPORTED,
            "%s has an adapter, and %s at %s reads its weight too: the merged model would be another; decode with the adapter instead",
            param->module, reader->op->name, reader->source);
    return OK;
}

/* The adapter's tensor that replaces the weight `name`; NULL: none. */
static const StTensor *find_whole(const Merger *merger, const char *name)
{
    return peft_find(merger->adapter, name, "");
}

/* Finds the adapter's rows that replace rows of the module's matrix. */
static void find_rows(const Merger *merger, const char *path, Source *source)
{
    source->rows = peft_find(merger->adapter, path, PEFT_END_TOKENS);
    source->tokens = source->rows ? peft_tokens_of(merger->lora, path) : NULL;
}

/* Finds the adapter's token rows for a tied head: the head's own rows, else the embedding's. */
static void find_head_rows(Merger *merger, const Param *param, Source *source)
{
    const char *end = strrchr(param->untied, '.');
    find_rows(merger, arena_strndup(&merger->arena, param->untied, end ? (size_t)(end - param->untied) : strlen(param->untied)), source);
    if (!source->rows) find_rows(merger, whole_path(&merger->arena, param), source);
}

/* Gives a tied head a tensor of its own if the head is adapted, or if the embedding was trained whole without the head. If the base's files
 * hold a copy of the embedding under the head's name, that copy is merged as any tensor. */
static Status find_head(Merger *merger, const Param *param, bool *out_untied)
{
    const StTensor *embedding, *copy = st_find(merger->base, param->untied), *whole = find_whole(merger, param->untied);
    const StTensor *of_both = find_whole(merger, param_saved(param)->names[0]);
    if (of_both && merger->lora->tie_whole) {
        if (copy) merger->sources[copy - st_at(merger->base, 0)].whole = of_both;
        return OK;
    }
    if (copy) find_head_rows(merger, param, &merger->sources[copy - st_at(merger->base, 0)]);
    if (!peft_find(merger->adapter, param->module, PEFT_END_A) && !whole && !of_both) return OK;
    FAIL_IF(*out_untied, ERR_UNSUPPORTED, "%s: a second tied weight with an adapter", param->name);
    *out_untied = true;
    Source *source = copy ? &merger->sources[copy - st_at(merger->base, 0)] : &merger->sources[merger->num_sources++];
    source->module = param->module;
    source->whole = whole;
    find_head_rows(merger, param, source);
    if (copy) return OK;
    TRY(st_require(merger->base, weights_source(merger->base, param)->names[0], &embedding));
    merger->head = *embedding;
    merger->head.name = param->untied;
    source->tensor = &merger->head;
    return OK;
}

/* Finds the base's tensors. *out_untied: the merged model's head isn't tied to the embedding. */
static Status find_sources(Merger *merger, const HfModel *base, bool *out_untied)
{
    Graph *graph;
    size_t count = st_count(merger->base);
    merger->sources = arena_array(&merger->arena, Source, count + 1);
    for (size_t i = 0; i < count; i++) merger->sources[i].tensor = st_at(merger->base, i);
    merger->num_sources = count;
    *out_untied = false;
    TRY(hf_model_bind(&merger->arena, base, DT_F32, &graph));
    if (merger->format) TRY(mark_quantised(merger, graph));
    for (int i = 0; i < graph->num_params; i++) {
        const Param *param = graph->params[i];
        Source      *source = source_of(merger, param);
        HfKind       kind = weights_source(merger->base, param)->kind;
        if (source) find_rows(merger, whole_path(&merger->arena, param), source);
        if (source && whole_path(&merger->arena, param)) source->whole = find_whole(merger, param_saved(param)->names[0]);
        if (source && kind == HF_TRANSPOSE) source->is_transposed = true;
        if (source && !param->untied && param->is_linear && (kind == HF_WHOLE || source->is_transposed)) source->module = param->module;
        TRY(check_readers(merger, graph, param));
        if (param->untied) TRY(find_head(merger, param, out_untied));
    }
    return OK;
}

/* Replaces each quantised matrix by the tensors that the folder stores for it. Tensors that belong to no matrix are added. */
static Status find_stored(Merger *merger, const HfModel *base)
{
    size_t  added = merger->num_sources - st_count(merger->base); /* number of sources beyond the base's tensors */
    Source *numbers = merger->sources;
    TRY(st_open(base->dir, &merger->folder));
    size_t count = st_count(merger->folder);
    merger->sources = arena_array(&merger->arena, Source, count + added);
    for (size_t i = 0; i < count; i++) {
        const StTensor *stored = st_at(merger->folder, i), *same = st_find(merger->base, stored->name);
        Source         *source = &merger->sources[i];
        int             part;
        const StTensor *owner = quantised_owner(merger->base, base->format, stored->name, &part);
        if (owner || same) *source = numbers[(owner ? owner : same) - st_at(merger->base, 0)];
        if (!owner && same) continue;
        source->stored = stored;
        source->part = part;
    }
    for (size_t i = 0; i < added; i++) merger->sources[count + i] = numbers[st_count(merger->base) + i];
    merger->num_sources = count + added;
    return OK;
}

static Status write_tensors(Merger *merger, const char *folder, int64_t max_shard_bytes)
{
    StDecl *decls = arena_array(&merger->arena, StDecl, merger->num_sources);
    declare(merger, decls);
    TRY(file_make_dirs(folder));
    return st_write_folder(folder, "model", decls, merger->num_sources, (size_t)max_shard_bytes, append_tensor, merger);
}

/* Writes the base's config.json. If untied, it says that the head isn't tied. If matrices are written quantised, it names the format. */
static Status write_config(const Merger *merger, Arena *arena, const HfModel *base, bool untied, const char *folder)
{
    JsonValue   config = json_copy_object(arena, &base->config, 2);
    bool        is_told = merger->folder && base->quantization.type != JSON_NULL;
    const char *path = arena_printf(arena, "%s/config.json", folder);
    if (untied) hf_model_untie(base, &config);
    if (is_told) json_set(&config, str_of("quantization_config"), base->quantization);
    if (untied || is_told)
        TRY(json_file_write(path, &config));
    else
        TRY(file_write_atomic(path, base->config_text.data, base->config_text.len));
    return model_ir_write(base->module, folder);
}

/* Copies ModelOpt's own file, which names the format too, if matrices are written quantised. */
static Status copy_quant_config(const Merger *merger, Arena *arena, const HfModel *base, const char *folder)
{
    const char *name = "hf_quant_config.json", *path = arena_printf(arena, "%s/%s", base->dir, name);
    Str         text;
    bool        is_there;
    TRY(file_exists(path, &is_there));
    if (!merger->folder || !is_there) return OK;
    TRY(file_read_as_is(arena, path, MAX_CONFIG_BYTES, &text));
    return file_write_atomic(arena_printf(arena, "%s/%s", folder, name), text.data, text.len);
}

/* Whether tokenizer_config.json of the folder holds a chat template. */
static Status has_inner_template(Arena *arena, const char *dir, bool *out)
{
    const char *path = arena_printf(arena, "%s/tokenizer_config.json", dir);
    JsonValue   config;
    TRY(json_file_read_if_there(arena, path, MAX_CONFIG_BYTES, &config));
    *out = json_get(&config, "chat_template") != NULL;
    return OK;
}

/* Copies the base's files, then the adapter's files over them. If the adapter has a template, the base's templates are removed. A template
 * file of the base would win over the template in the adapter's tokenizer_config.json; a named template of the base would win for
 * conversations with tools. */
static Status copy_tokenizer(Arena *arena, const char *base, const char *adapter, const char *folder)
{
    static const char *const files[] = {"chat_template.jinja", "chat_template.json", HF_TEMPLATE_FOLDER};
    bool                     has_template;
    TRY(hf_copy_side_files(base, folder));
    TRY(has_inner_template(arena, adapter, &has_template));
    for (int i = 0; i < 2; i++) {
        bool is_there;
        TRY(file_exists(arena_printf(arena, "%s/%s", adapter, files[i]), &is_there));
        has_template |= is_there;
    }
    for (int i = 0; has_template && i < 3; i++) TRY(file_remove_tree(arena_printf(arena, "%s/%s", folder, files[i])));
    return hf_copy_side_files(adapter, folder);
}

static void merger_deinit(Merger *merger)
{
    st_close(merger->folder);
    arena_deinit(&merger->parts_arena);
    arena_deinit(&merger->arena);
}

Status merge_adapter(HfModel *base, const PeftAdapter *adapter, bool quantised, const char *folder, int64_t max_shard_bytes,
                     ThreadPool *pool)
{
    TRY(hf_model_open_weights(base));
    FAIL_IF(quantised && base->format == QUANTISED_NONE, ERR_INVALID,
            "%s isn't quantised, so that there is no format to write the merged model in; leave out --quantised", base->dir);
    SCOPED(st_close_at) StFile *file = NULL;
    TRY(peft_check_model(adapter, base));
    TRY(peft_open_tensors(adapter->dir, &file));
    SCOPED(merger_deinit) Merger merger = {.base = base->weights, .adapter = file, .lora = &adapter->lora, .pool = pool};
    /* a base stored in that format needs none: it is read as in training */
    if (!hf_model_has_format(base, adapter->base_format)) merger.format = adapter->base_format;
    bool untied = false;
    TRY(find_sources(&merger, base, &untied));
    if (quantised) TRY(find_stored(&merger, base));
    TRY(find_halves(&merger));
    TRY(write_tensors(&merger, folder, max_shard_bytes));
    TRY(copy_tokenizer(&merger.arena, base->dir, adapter->dir, folder));
    TRY(copy_quant_config(&merger, &merger.arena, base, folder));
    return write_config(&merger, &merger.arena, base, untied, folder);
}
