/* A folder that appears whole: it is written under a hidden name and renamed at the end. So a command that is refused or killed leaves
 * nothing that looks finished, and can be run again. */
#pragma once

#include "base/arena.h"
#include "base/status.h"

typedef struct FolderWriter {
    const char *path;    /* path of the folder, as the caller named it */
    const char *partial; /* write the files here */
    bool        is_there;
    int         lock;
} FolderWriter;

/* Makes an empty folder, out->partial: beside `path`, or inside it if `path` already exists. Files that an earlier writer left there are
 * removed. ERR_INVALID while another process writes there. `arena` must outlive the writer. */
NODISCARD Status folder_begin(Arena *arena, const char *path, FolderWriter *out);

/* Gives the folder its name. If `path` existed before, its files are replaced one by one, the file `last` at the end. */
NODISCARD Status folder_finish(FolderWriter *writer, const char *last);

/* Makes a folder that doesn't exist yet: `make` writes into the empty folder `partial`, and the file `last` appears last. If several
 * processes or threads call this, one makes the folder; the others print `waiting` and wait for it. */
NODISCARD Status folder_make_once(Arena *arena, const char *folder, const char *last, const char *waiting,
                                  Status (*make)(void *context, const char *partial), void *context);

/* Removes the files written so far. Returns `status`; its message then names the folder as the caller did. */
Status folder_abandon(FolderWriter *writer, Status status);
