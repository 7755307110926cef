# bash completion of the replay programs: share/replay/complete says what there is.

_replay() {
    local program current=$2 words word
    program=$(type -P "$1") || return
    words=$("${program%/*}/../share/replay/complete" "$program" "${COMP_WORDS[@]:1:COMP_CWORD}" | cut -f 1)
    COMPREPLY=()
    while IFS= read -r word; do # compgen -W would expand the names of runs, and execute a $(...) in them
        case $word in
        '' | @*) ;;
        "$current"*) COMPREPLY+=("$word") ;;
        esac
    done <<<"$words"
    case $words in
    *@files*) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current") ;;
    *@folders*) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$current") ;;
    esac
}

complete -o filenames -F _replay replay-broker replay-ctl replay-launch replay-actor replay-learner replay-single \
    replay-bench replay-demo
