/* An episode as text. */

#include "agent/program/measure.h"

/* Limits: numbers of a vector that fit on a line; images that fit on a screen. */
#define MOST_NUMBERS 12u
#define MOST_SIDE 120u
#define MOST_ACTIONS 4u

static uint32_t numbers_of(const rp_env_spec *spec)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < spec->observation_rank; i++)
        n *= spec->observation_shape[i];
    return n;
}

static double number_at(const rp_env_spec *spec, const void *observation, uint32_t i)
{
    return spec->observation_dtype == RP_DTYPE_UINT8 ? (double)((const uint8_t *)observation)[i]
                                                     : (double)((const float *)observation)[i];
}

static bool is_image(const rp_env_spec *spec)
{
    return spec->observation_rank >= 2 && spec->observation_shape[0] <= MOST_SIDE &&
           spec->observation_shape[1] <= MOST_SIDE;
}

/* A cell shows the number of the last plane that is set there; a plane of grey values is shown as a ramp. */
static char cell_of(const rp_env_spec *spec, const void *observation, uint32_t cell)
{
    static const char ramp[] = " .:-=+*#%@", names[] = "123456789abcdefghijklmnopqrstuvwxyz";
    uint32_t planes = spec->observation_rank > 2 ? spec->observation_shape[2] : 1;
    double most = spec->observation_dtype == RP_DTYPE_UINT8 ? 255.0 : 1.0;
    if (planes == 1) {
        double value = number_at(spec, observation, cell);
        double share = value <= 1.0 && value >= 0.0 ? value : value / most; /* planes of bits are 0 and 1 */
        int level = (int)(share * 9.0 + 0.5);
        return ramp[level < 0 ? 0 : level > 9 ? 9 : level];
    }
    for (uint32_t p = planes; p-- > 0;)
        if (number_at(spec, observation, cell * planes + p) != 0.0)
            return p < sizeof names - 1 ? names[p] : '*';
    return '.';
}

static void show_image(const rp_env_spec *spec, const void *observation, FILE *out)
{
    uint32_t height = spec->observation_shape[0], width = spec->observation_shape[1];
    for (uint32_t y = 0; y < height; y++) {
        fputs("      |", out);
        for (uint32_t x = 0; x < width; x++)
            fputc(cell_of(spec, observation, y * width + x), out);
        fputs("|\n", out);
    }
}

static void show_vector(const rp_env_spec *spec, const void *observation, FILE *out)
{
    uint32_t n = numbers_of(spec), shown = n < MOST_NUMBERS ? n : MOST_NUMBERS;
    for (uint32_t i = 0; i < shown; i++)
        fprintf(out, " %9.4g", number_at(spec, observation, i));
    fprintf(out, "%s\n", n > shown ? " ..." : "");
}

void show_head(const rp_env_spec *spec, FILE *out)
{
    fprintf(out, "%6s %10s %10s %10s  %-*s %s\n", "step", "reward", "return", "value",
            spec->n_actions ? 6 : 11 * (int)(spec->action_size < MOST_ACTIONS ? spec->action_size : MOST_ACTIONS),
            "action", is_image(spec) ? "" : "observation");
}

void show_step(const rp_env_spec *spec, const struct episode *episode, const struct agent_choice *choice, double reward,
               const void *observation, FILE *out)
{
    fprintf(out, "%6llu %10.4g %10.4g %10.4g ", (unsigned long long)episode->steps, reward, episode->value,
            (double)choice->value);
    if (spec->n_actions)
        fprintf(out, " %-6d", choice->discrete);
    for (uint32_t i = 0; i < spec->action_size && i < MOST_ACTIONS; i++) /* canonical: the bounds are -1 and 1 */
        fprintf(out, " %10.4f", (double)choice->continuous[i]);
    if (is_image(spec)) {
        fputc('\n', out);
        show_image(spec, observation, out);
    } else {
        show_vector(spec, observation, out);
    }
}

void show_end(const struct episode *episode, FILE *out)
{
    fprintf(out, "%s after %llu steps with a return of %.6g\n\n",
            episode->truncated ? "cut off by the time limit" : "ended", (unsigned long long)episode->steps,
            episode->value);
}
