/* IrModule: a family of models as JSON IR (docs/ir.md): a template with repeat, if and symbolic dims that `bind` instantiates
 * for one config.json. Or an objective: what is computed of a model's outputs, and trained. */
#pragma once

#include "base/json.h"
#include "ir/graph.h"

enum { IR_MOST_INPUTS = FEED_MOST_OWN, IR_MOST_NAMESPACES = 4 };

typedef struct IrModule IrModule;

/* A second model, frozen, whose outputs an objective reads under a name in front: teacher.logits. */
typedef struct IrNamespace {
    const char      *name;
    const IrModule  *module;
    const JsonValue *config;
    const char      *config_name;
} IrNamespace;

struct IrModule {
    const char *file; /* for errors */
    const char *text; /* the JSON, for positions */
    size_t      len;
    const char *architecture;           /* Qwen3ForCausalLM; NULL: it is an objective */
    OwnInput    inputs[IR_MOST_INPUTS]; /* what it reads besides what the engine gives */
    int         num_inputs;
    JsonValue   root;

    /* What a run adds to a model (ir_module_link). */
    const IrModule *objective; /* NULL: its own losses, or those of the shipped objective `sft` */
    IrNamespace     namespaces[IR_MOST_NAMESPACES];
    int             num_namespaces;
};

enum { IR_MAX_BYTES = 16 << 20 };

/* Parses and checks version and layout; statements are checked when bound. text (at most IR_MAX_BYTES) must outlive the
 * module. */
NODISCARD Status ir_module_parse(Arena *arena, const char *file, const char *text, size_t len, IrModule **out_module);
NODISCARD Status ir_objective_parse(Arena *arena, const char *file, const char *text, size_t len, IrModule **out_module);

/* `model` with an objective (NULL: none) and the models that this reads: its inputs are both modules'. All are borrowed. */
NODISCARD Status ir_module_link(Arena *arena, const IrModule *model, const IrModule *objective, const IrNamespace *namespaces,
                                int num_namespaces, IrModule **out_module);

/* Which declares an input of its own of that name: the objective or the model itself; NULL: neither does. */
const IrModule *ir_module_declaring(const IrModule *module, const char *input);

/* A shipped module by architecture name, or NULL. The shipped ones are compiled into the program from models/ *.json. */
const char *ir_shipped_module(const char *architecture, size_t *out_len);
/* The shipped objective: cross entropy of the labels, its mean over the trained tokens (models/objectives/sft.json). */
NODISCARD Status ir_shipped_objective(Arena *arena, IrModule **out_module);
/* Names of the shipped architectures, NULL-terminated. */
const char *const *ir_shipped_architectures(void);

/* A number that a name stands for, or a list of them. */
typedef struct IrSymbol {
    const char *name;
    const char *key;    /* of config.json: the spelling found there, else the first */
    const char *unused; /* why another value than 0 changes nothing; NULL: it does */
    double      value;
    int64_t     count; /* of `list`; 0: it is one number */
    double     *list;
} IrSymbol;

/* The symbols of one model. */
typedef struct IrDims {
    int       num;
    int64_t   num_listed; /* entries of all lists */
    IrSymbol *symbols;
} IrDims;

/* The number of that name; false: there is none. */
bool ir_dims_get(const IrDims *dims, const char *name, double *out);
/* The same, or entry *index of a list; what an expression's names mean (ExprLookup). */
NODISCARD Status ir_dims_at(const IrDims *dims, const char *name, const double *index, double *out);

/* Evaluates the module's `config` section against a config.json: every symbol, every requirement. Errors name the key. */
NODISCARD Status ir_module_dims(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name, IrDims *out);

typedef struct BindOptions {
    const char         *graph_name;
    int64_t             batch, seq; /* symbols B and T */
    int64_t             max_len;    /* symbol P: positions the rotary table covers */
    int64_t             reach;      /* symbol reach: tokens of the longest row trained or evaluated, else of the KV cache */
    DType               dtype;      /* of parameters and activations */
    const OpDef *const *ops;
    int                 num_ops;
    int64_t             max_layers; /* turns of an outermost repeat of the model itself beyond these are left out; 0: none are */
    int64_t             max_work;   /* JSON members looked at before the module is refused; 0: IR_MAX_WORK */
} BindOptions;

/* Much more than any model takes: 100 layers of 128 experts are a tenth of it. */
#define IR_MAX_WORK ((int64_t)1 << 22)

/* What the engine asks of a model's symbols. */
typedef enum IrRole {
    IR_ROLE_VOCABULARY, /* how many tokens it knows */
    IR_ROLE_POSITIONS,  /* the longest sequence it was made for */
    IR_ROLE_TIED,       /* whether the output head is the embedding */
    IR_ROLE_COUNT
} IrRole;
/* The symbol of `dims` that the module's "roles" name for it; *out NULL: they name none. */
NODISCARD Status ir_module_role(const IrModule *module, const IrDims *dims, IrRole role, const IrSymbol **out);

/* Whether the module's "unread" says that a tensor of a model folder carries nothing: that its name ends so. */
bool ir_module_is_unread(const IrModule *module, const char *tensor);

/* What the names of all tensors of a model folder may lack in front: "prefix"; NULL: nothing. */
const char *ir_module_prefix(const IrModule *module);

/* Instantiates the template: a Graph with inputs, parameters, nodes and outputs, every shape checked. The model alone: neither objective
 * nor namespaces. */
NODISCARD Status ir_module_bind(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                                const BindOptions *options, Graph **out_graph);

/* The same for a program that is run for the output `want`: where the model has none of that name, its objective is bound to its outputs,
 * and the namespaces that this reads before it. */
NODISCARD Status ir_program_bind(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                                 const BindOptions *options, const char *want, Graph **out_graph);
