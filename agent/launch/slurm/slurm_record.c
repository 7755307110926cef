#include "agent/launch/slurm/slurm_record.h"

#include <json-c/json.h>
#include <stdlib.h>

#include "proto/base/error.h"
#include "proto/base/json_map.h"

#define ROW(member) JSON_ROW(struct slurm_record, member)

static const struct json_row rows[] = {ROW(core), ROW(array), ROW(tasks), ROW(script), {0}};

bool slurm_record_read(const char *folder, struct slurm_record *out)
{
    *out = (struct slurm_record){0};
    char *text = run_folder_read(folder, SLURM_RECORD);
    json_object *root = text ? json_tokener_parse(text) : NULL;
    bool ok = json_object_is_type(root, json_type_object) && json_map_read(root, rows, out);
    json_object_put(root);
    free(text);
    return ok;
}

rp_status slurm_record_write(const char *folder, const struct slurm_record *self, rp_error *err)
{
    json_object *root = json_map_object(rows, self);
    if (!root)
        return err_set(err, RP_NO_MEMORY, "no memory for the numbers of the jobs");
    rp_status status =
        run_folder_write(folder, SLURM_RECORD, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), err);
    json_object_put(root);
    return status;
}
