#include "agent/env/mujoco.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/need.h"

/* ---- MuJoCo's handlers ---- */

/* Where an error in a step of this thread continues. MuJoCo's error handler must not return, and the default handler exits. */
static _Thread_local jmp_buf *mujoco_guard;

static void mujoco_on_error(const char *text)
{
    if (mujoco_guard)
        longjmp(*mujoco_guard, 1);
    /* Outside of steps there is no error but that there is no memory; the compiler of models catches its own. */
    fprintf(stderr, "MuJoCo: %s\n", text);
    abort();
}

/* A model that becomes unstable shows in mjData.warning after the step. */
static void mujoco_on_warning(const char *text)
{
    (void)text;
}

static void mujoco_set_handlers(void)
{
    mju_user_error = mujoco_on_error;
    mju_user_warning = mujoco_on_warning;
}

/* ---- the model ---- */

static pthread_once_t mujoco_once = PTHREAD_ONCE_INIT;
/* The compiler of models keeps the last model in a global. */
static pthread_mutex_t mujoco_compiler = PTHREAD_MUTEX_INITIALIZER;

/* MuJoCo's messages contain line ends. */
static void mujoco_one_line(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n')
            text[i] = ' ';
}

rp_status mujoco_load(const char *name, const char *xml, mjModel **out, rp_error *err)
{
    static const char file[] = "model.xml";
    size_t size = strlen(xml);
    char text[1000] = "";
    if (size == 0 || size > INT_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "the model of %s has %zu bytes", name, size);
    pthread_once(&mujoco_once, mujoco_set_handlers);
    mjVFS *files = need_alloc(sizeof *files); /* 2 MB */
    mj_defaultVFS(files);
    mj_makeEmptyFileVFS(files, file, (int)size);
    memcpy(files->filedata[0], xml, size);
    pthread_mutex_lock(&mujoco_compiler);
    *out = mj_loadXML(file, files, text, (int)sizeof text);
    mj_freeLastXML();
    pthread_mutex_unlock(&mujoco_compiler);
    mj_deleteVFS(files);
    free(files);
    mujoco_one_line(text);
    return *out ? RP_OK : err_set(err, RP_INVALID_ARGUMENT, "MuJoCo refuses the model of %s: %s", name, text);
}

/* ---- create and destroy ---- */

static rp_status mujoco_prepare(void *env, rp_env_spec *spec, rp_error *err)
{
    struct mujoco *self = env;
    const char *name = self->base.name;
    RP_TRY(mujoco_load(name, self->task->xml, &self->model, err));
    if (self->model->nq + self->model->nv > (int)MUJOCO_MAX_STATE || self->model->nu > (int)RP_ENV_MAX_ACTION)
        return err_set(err, RP_INVALID_ARGUMENT, "the model of %s is too large", name);
    self->data = mj_makeData(self->model);
    spec->observation_shape[0] = self->task->n_observation;
    spec->action_size = (uint32_t)self->model->nu;
    for (int i = 0; i < self->model->nu; i++) {
        spec->action_low[i] = (float)self->model->actuator_ctrlrange[2 * i];
        spec->action_high[i] = (float)self->model->actuator_ctrlrange[2 * i + 1];
    }
    return RP_OK;
}

static void mujoco_release(void *env)
{
    struct mujoco *self = env;
    if (self->data)
        mj_deleteData(self->data);
    if (self->model)
        mj_deleteModel(self->model);
}

/* ---- episodes ---- */

static size_t mujoco_qpos_bytes(const struct mujoco *self)
{
    return (size_t)self->model->nq * sizeof(double);
}

static size_t mujoco_qvel_bytes(const struct mujoco *self)
{
    return (size_t)self->model->nv * sizeof(double);
}

/* Each step computes everything else in mjData from these, except the warm start of the solver: without clearing it,
 * the last bits of an episode would depend on the previous one. */
static void mujoco_set(struct mujoco *self, const double *qpos, const double *qvel)
{
    mjData *data = self->data;
    memcpy(data->qpos, qpos, mujoco_qpos_bytes(self));
    memcpy(data->qvel, qvel, mujoco_qvel_bytes(self));
    memset(data->qacc_warmstart, 0, mujoco_qvel_bytes(self));
    data->time = 0;
}

static void mujoco_start(void *env)
{
    struct mujoco *self = env;
    double qpos[MUJOCO_MAX_STATE], qvel[MUJOCO_MAX_STATE] = {0};
    memcpy(qpos, self->model->qpos0, mujoco_qpos_bytes(self));
    self->task->start(self, qpos, qvel);
    mujoco_set(self, qpos, qvel);
}

static bool mujoco_place(void *env, const double *state, uint32_t n)
{
    struct mujoco *self = env;
    if (n != (uint32_t)(self->model->nq + self->model->nv))
        return false;
    mujoco_set(self, state, state + self->model->nq);
    return true;
}

static void mujoco_observe(const void *env, void *observation)
{
    const struct mujoco *self = env;
    self->task->observe(self, observation);
}

/* MuJoCo resets the data by itself when a number diverges, and counts that here. */
static bool mujoco_ran_away(const mjData *data)
{
    return data->warning[mjWARN_BADQPOS].number || data->warning[mjWARN_BADQVEL].number ||
           data->warning[mjWARN_BADQACC].number || data->warning[mjWARN_BADCTRL].number;
}

/* False: MuJoCo has reported an error. */
static bool mujoco_advance(struct mujoco *self)
{
    jmp_buf here;
    volatile bool ok = false;
    mujoco_guard = &here;
    if (setjmp(here) == 0) {
        for (int i = 0; i < (int)self->frame_skip; i++)
            mj_step(self->model, self->data);
        ok = true;
    }
    mujoco_guard = NULL;
    return ok;
}

/* A step that fails is the last of its episode. */
static double mujoco_move(void *env, const void *action, bool *terminal)
{
    struct mujoco *self = env;
    mjData *data = self->data;
    const float *control = action;
    double *before_qvel = self->before + self->model->nq;
    memcpy(self->before, data->qpos, mujoco_qpos_bytes(self));
    memcpy(before_qvel, data->qvel, mujoco_qvel_bytes(self));
    for (int i = 0; i < self->model->nu; i++)
        data->ctrl[i] = (double)control[i];
    if (mujoco_advance(self) && !mujoco_ran_away(data))
        return self->task->judge(self, control, terminal);
    mj_resetData(self->model, data);
    mujoco_set(self, self->before, before_qvel);
    self->base.steps = self->base.task->spec.max_steps;
    return 0;
}

/* ---- the picture: the model from its side, x to the right and z upwards ---- */

#define MUJOCO_TICKS 12 /* marks on the ground, a metre apart */

/* Shows the whole rail of a cart; otherwise follows the first body over ground with marks, so that one sees it move. */
static void mujoco_view(const mjModel *model, const mjData *data, rp_drawing *out)
{
    bool rail = model->njnt > 0 && model->jnt_type[0] == mjJNT_SLIDE && model->jnt_limited[0];
    double reach = rail ? model->jnt_range[1] + 0.4 : 2, centre = rail ? 0 : data->xpos[3];
    *out = (rp_drawing){.left = centre - reach, .right = centre + reach, .bottom = -0.6 * reach, .top = 0.7 * reach};
    if (rail) {
        rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_SCENE, model->jnt_range[0], 0, model->jnt_range[1], 0, 0.02});
        return;
    }
    out->bottom = -0.3;
    out->top = 1.7;
    rp_draw(out, (rp_shape){RP_SHAPE_BOX, RP_ROLE_SCENE, out->left, out->bottom, out->right, 0, 0});
    for (int i = 0; i < MUJOCO_TICKS; i++) {
        double x = floor(out->left) + i;
        if (x >= out->left && x <= out->right)
            rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_MARK, x, -0.12, x, 0, 0.02});
    }
}

/* A capsule is a line; a sphere a circle. What a task has of other geoms does not move. */
static void mujoco_draw_geom(const mjModel *model, const mjData *data, int geom, rp_drawing *out)
{
    const double *at = data->geom_xpos + 3 * geom, *turn = data->geom_xmat + 9 * geom,
                 *size = model->geom_size + 3 * geom;
    double x = turn[2] * size[1], z = turn[8] * size[1]; /* half of its axis */
    rp_shape_role role = model->body_parentid[model->geom_bodyid[geom]] == 0 ? RP_ROLE_BODY : RP_ROLE_LIMB;
    if (model->geom_type[geom] == mjGEOM_CAPSULE)
        rp_draw(out, (rp_shape){RP_SHAPE_LINE, role, at[0] - x, at[2] - z, at[0] + x, at[2] + z, 2 * size[0]});
    else if (model->geom_type[geom] == mjGEOM_SPHERE)
        rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, role, at[0], at[2], 0, 0, size[0]});
}

/* A body without geoms reaches as far beyond its centre of mass as the centre is from its joint; a cart has it in the joint. */
static void mujoco_draw_body(const mjModel *model, const mjData *data, int body, rp_drawing *out)
{
    const double *at = data->xpos + 3 * body, *centre = data->xipos + 3 * body;
    double x = 2 * (centre[0] - at[0]), z = 2 * (centre[2] - at[2]);
    if (model->body_geomnum[body] > 0)
        return;
    if (fabs(x) + fabs(z) < 1e-9)
        rp_draw(out, (rp_shape){RP_SHAPE_BOX, RP_ROLE_BODY, at[0] - 0.15, at[2] - 0.08, at[0] + 0.15, at[2] + 0.08, 0});
    else
        rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_LIMB, at[0], at[2], at[0] + x, at[2] + z, 0.05});
}

/* The positions in mjData are those before the last physics step; they are computed anew in each step. */
static void mujoco_draw(const void *env, rp_drawing *out)
{
    const struct mujoco *self = env;
    mj_kinematics(self->model, self->data);
    mujoco_view(self->model, self->data, out);
    out->step_s = mujoco_duration(self);
    for (int i = 0; i < self->model->ngeom; i++)
        mujoco_draw_geom(self->model, self->data, i, out);
    for (int i = 1; i < self->model->nbody; i++)
        mujoco_draw_body(self->model, self->data, i, out);
    for (int i = 0; i < self->model->njnt; i++)
        if (self->model->jnt_type[i] == mjJNT_HINGE && self->model->jnt_limited[i])
            rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_JOINT, self->data->xanchor[3 * i],
                                    self->data->xanchor[3 * i + 2], 0, 0, 0.03});
}

static const struct classic_task mujoco_classic = {
    .spec = {CLASSIC_NUMBERS(0), .max_steps = 1000},
    .size = sizeof(struct mujoco),
    .options = (const struct classic_option[]){{"frame_skip", 1, 100, 1, true, offsetof(struct mujoco, frame_skip)}},
    .n_options = 1,
    .prepare = mujoco_prepare,
    .start = mujoco_start,
    .observe = mujoco_observe,
    .move = mujoco_move,
    .place = mujoco_place,
    .draw = mujoco_draw,
    .release = mujoco_release,
};

void *mujoco_create(const char *name, const struct mujoco_task *task, const rp_option *options, uint32_t n_options,
                    rp_env_spec *spec, rp_error *err)
{
    struct mujoco *self = classic_new(name, &mujoco_classic);
    self->task = task;
    self->frame_skip = task->frame_skip;
    return classic_complete(self, options, n_options, spec, err);
}

/* ---- for the tasks ---- */

double mujoco_uniform(struct mujoco *self, double bound)
{
    return (2 * rng_unit(&self->base.rng) - 1) * bound;
}

/* Box and Muller; the second number of a pair is dropped, so that the seed alone decides. */
double mujoco_normal(struct mujoco *self)
{
    double radius = sqrt(-2 * log(1 - rng_unit(&self->base.rng)));
    return radius * cos(2 * mjPI * rng_unit(&self->base.rng));
}

double mujoco_duration(const struct mujoco *self)
{
    return self->frame_skip * self->model->opt.timestep;
}
