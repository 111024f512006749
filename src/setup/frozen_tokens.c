/* See frozen_tokens.h. The plan tells what is trained: a whole matrix, an adapter on it, or rows of some token ids. */
#include "setup/frozen_tokens.h"

#include "base/log.h"
#include "passes/adapt_tokens.h"
#include "passes/adapt_whole.h"
#include "passes/peft_names.h"
#include "setup/setup.h"

#include <string.h>

typedef struct Teller {
    Arena         arena;
    const Config *config;
    const Plan   *plan;
    Tokenizer    *tokenizer;   /* including the new tokens */
    int64_t       first, last; /* ids of new tokens: [first, last) */
    StrBuf        text;
} Teller;

static const Param *find_param(const Plan *plan, const char *name)
{
    for (int i = 0; i < plan->num_params; i++)
        if (strcmp(plan->params[i]->name, name) == 0) return plan->params[i];
    return NULL;
}

static bool has_id(const Param *rows, int64_t id)
{
    for (int64_t i = 0; rows && i < rows->hf.rows; i++)
        if (rows->hf.ids[i] == id) return true;
    return false;
}

/* Writes advice for a matrix that isn't trained (has_rows false), or that is trained in some rows only. */
static void put_advice(Teller *t, const char *path, bool has_rows)
{
    const char *dot = strrchr(path, '.'), *module = dot ? dot + 1 : path;
    if (t->config->adapter)
        strbuf_puts(&t->text, "the adapter trains other rows");
    else if (t->config->lora_modules_to_save.count)
        strbuf_printf(&t->text, "name %s in lora_modules_to_save to train them", module);
    else if (has_rows)
        strbuf_puts(&t->text, "add the ids to trainable_token_indices to train them");
    else
        strbuf_printf(&t->text, "name %s in trainable_token_modules to train them", module);
}

/* Lists the new tokens whose rows stay untrained. name: the matrix in the plan; path: its name in the model folder. */
static void tell_matrix(Teller *t, const char *name, const char *path)
{
    enum { MOST_TOLD = 8 };
    const Param *whole = find_param(t->plan, name), *rows = find_param(t->plan, arena_printf(&t->arena, "%s.tokens", name));
    int64_t      frozen = 0;
    if (!whole || whole->trained || find_param(t->plan, arena_printf(&t->arena, "%s." PEFT_A, name))) return;
    for (int64_t id = t->first; id < t->last; id++) {
        const char *token = tokenizer_id_to_token(t->tokenizer, (int32_t)id);
        if (has_id(rows, id)) continue;
        if (frozen++ < MOST_TOLD) strbuf_printf(&t->text, "%s%lld (%s)", frozen == 1 ? "; " : ", ", (long long)id, token ? token : "");
    }
    if (!frozen) return;
    if (frozen > MOST_TOLD) strbuf_printf(&t->text, " and %lld more", (long long)(frozen - MOST_TOLD));
    strbuf_printf(&t->text, " in %s: ", path);
    put_advice(t, path, rows != NULL);
}

/* An embedding tied to the head may be two matrices in the plan. */
static void tell_vocabulary(Teller *t, const Param *param)
{
    const char *path = whole_path(&t->arena, param), *head = arena_printf(&t->arena, "%s.head", param->name);
    tell_matrix(t, param->name, path ? path : param->name);
    const Param *divided = param->untied ? find_param(t->plan, head) : NULL;
    if (divided) tell_matrix(t, head, divided->module ? divided->module : head);
}

static Status tell(Teller *t, const HfModel *model, StrBuf *notes)
{
    Graph *graph;
    TRY(hf_model_bind(&t->arena, model, DT_F32, &graph));
    for (int i = 0; i < graph->num_params; i++)
        if (tokens_is_vocabulary(graph, graph->params[i])) tell_vocabulary(t, graph->params[i]);
    if (t->text.len) log_note(notes, true, "rows of new tokens stay as they begin, the mean of the old rows%s", t->text.data);
    return OK;
}

Status frozen_tokens_tell(const Config *config, const HfModel *model, const Plan *plan, StrBuf *notes)
{
    Teller         t = {.config = config, .plan = plan};
    NewTokens      tokens = setup_new_tokens(config);
    GrownTokenizer grown;
    const char    *dir, *gguf;
    if (!config->lora || !(tokens.num_tokens + tokens.num_special)) return OK;
    Status status = hf_local_dir(&t.arena, config->model, &dir, &gguf);
    if (status == OK) status = grow_tokenizer(&t.arena, dir, &tokens, &grown);
    if (status == OK && grown.num_added) status = grow_load_tokenizer(dir, &tokens, &t.tokenizer);
    if (status == OK && grown.num_added) {
        t.first = grown.num_tokens - grown.num_added;
        t.last = grown.num_tokens;
        status = tell(&t, model, notes);
    }
    tokenizer_destroy(t.tokenizer);
    strbuf_deinit(&t.text);
    arena_deinit(&t.arena);
    return status;
}
