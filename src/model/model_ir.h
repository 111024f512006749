/* Where the IR of a model folder comes from. The first that is there: the file that the run names, surogate_ir.json of the folder, a
 * file of the folder that SUROGATE_MODELS names, a shipped one. All are data, but for a file in Python that the run names, which is run
 * where the command line says so. */
#pragma once

#include "ir/module.h"

/* The file that a run names. */
typedef struct NamedIr {
    const char *file;       /* NULL: none is named */
    bool        may_be_run; /* where it is Python */
    const char *key, *kind; /* that names it: ir, objective; and what it is: model, objective */
} NamedIr;

/* `config`: the parsed config.json, whose architecture the IR must be of. */
NODISCARD Status model_ir_find(Arena *arena, const char *dir, const JsonValue *config, const char *config_name, NamedIr ir,
                               IrModule **out_module);
/* The objective that a run names, which is there. */
NODISCARD Status model_ir_objective(Arena *arena, NamedIr ir, IrModule **out_module);
void             model_ir_tell_objective(const IrModule *objective, StrBuf *notes);
bool             model_ir_is_shipped(const IrModule *module);
/* Notes which file the IR is of, with its SHA-256, unless it is a shipped one. */
void model_ir_tell(const IrModule *module, StrBuf *notes);
/* surogate_ir.json of a folder that is written, unless it is a shipped one. */
NODISCARD Status model_ir_write(const IrModule *module, const char *folder);
