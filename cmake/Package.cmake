# What is installed beside programs and library: man pages, completion, documents, configurations, a unit for systemd; and
# the Debian package of all of it (./dev package).

set(doc_dir "${CMAKE_INSTALL_DATAROOTDIR}/doc/replay")
set(data_dir "${CMAKE_INSTALL_DATAROOTDIR}/replay")

# Documents refer to each other by relative paths, so they keep their places.
install(FILES README.md DESTINATION "${doc_dir}")
install(DIRECTORY docs DESTINATION "${doc_dir}")
install(FILES proto/PROTOCOL.md DESTINATION "${doc_dir}/proto")
install(FILES bench/README.md bench/learning.svg bench/actors.svg bench/shards.svg DESTINATION "${doc_dir}/bench")
# Not among the documents: systems that leave documents out need these all the same. They keep their places, too: configs/ names the
# client in plain Python, which reads the .proto file.
install(FILES proto/replay.proto DESTINATION "${data_dir}/proto")
install(DIRECTORY configs DESTINATION "${data_dir}")
install(DIRECTORY tests/foreign DESTINATION "${data_dir}/tests" FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)

# ---- man pages, made from what --help prints
set(summary_replay-broker "keeps replay tables and parameter slots")
set(summary_replay-ctl "inspect and operate a running replay-broker")
set(summary_replay-launch "run an experiment: broker, actors, learners and evaluator from one file")
set(summary_replay-actor "an actor of a run, as a process of its own")
set(summary_replay-learner "a learner of a run, as a process of its own")
set(summary_replay-single "a whole run in one process, the same every time")
set(summary_replay-bench "measure the broker against plain libzmq")
set(summary_replay-demo "a broker, two synthetic actors and a learner for ten seconds")
set(programs replay-broker replay-ctl replay-launch replay-actor replay-learner replay-single replay-bench replay-demo)

find_program(HELP2MAN help2man)
if(HELP2MAN AND NOT CMAKE_CROSSCOMPILING AND RP_SANITIZE STREQUAL "" AND NOT RP_COVERAGE)
    foreach(program IN LISTS programs)
        set(page "${CMAKE_BINARY_DIR}/man/${program}.1")
        add_custom_command(
            OUTPUT "${page}"
            COMMAND "${PROJECT_SOURCE_DIR}/cmake/package/man" "$<TARGET_FILE:${program}>" "${summary_${program}}" "${page}"
            DEPENDS ${program} cmake/package/man COMMENT "man page of ${program}" VERBATIM)
        list(APPEND pages "${page}")
    endforeach()
    add_custom_target(replay_man ALL DEPENDS ${pages})
    install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
else()
    message(STATUS "no man pages: help2man is missing, or the programs cannot run here")
endif()

# ---- completion: one program says what may stand there, and each shell asks it
install(PROGRAMS cmake/package/complete DESTINATION "${data_dir}")
foreach(program IN LISTS programs)
    install(FILES cmake/package/completion.bash DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions"
        RENAME "${program}")
    install(FILES cmake/package/completion.fish DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d"
        RENAME "${program}.fish")
endforeach()
install(FILES cmake/package/completion.zsh DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions" RENAME _replay)

# ---- systemd
install(FILES cmake/package/replay-broker.service DESTINATION lib/systemd/system)

# ---- the Debian package
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME replay)
set(CPACK_PACKAGE_CONTACT "The maintainers of replay <replay@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/cmake/package/triggers")
include(CPack)
