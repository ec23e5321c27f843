"""Words that the rules of `rewriting` exchange, chosen for the language of documentation."""

from __future__ import annotations


def _both_ways(text: str) -> dict[str, str]:
    """Each word to its partner, from `one=other` with blanks between."""
    pairs = [tuple(entry.split("=")) for entry in text.split()]
    return {one: other for pair in pairs for one, other in (pair, pair[::-1])}


SYNONYMS = _both_ways("""
    create=make creates=makes created=made compute=calculate computes=calculates computed=calculated
    get=obtain gets=obtains convert=transform converts=transforms converted=transformed check=verify
    checks=verifies delete=erase deletes=erases deleted=erased given=specified function=routine
    functions=routines method=procedure methods=procedures error=fault errors=faults string=text
    strings=texts use=employ uses=employs used=employed using=employing only=solely because=since
    current=present identical=alike each=every call=invoke calls=invokes called=invoked
    contains=holds contain=hold allows=permits allow=permit allowed=permitted raise=throw
    raises=throws raised=thrown large=big small=tiny distinct=separate element=item elements=items
    argument=parameter arguments=parameters provides=offers provide=offer provided=offered
    ensure=guarantee ensures=guarantees show=display shows=displays specific=particular need=require
    needs=requires entire=whole directory=folder directories=folders generate=produce
    generates=produces generated=produced execute=run executes=runs find=locate finds=locates
    modify=change modifies=changes corresponding=matching additional=extra simple=plain
    appropriate=suitable often=frequently usually=normally via=through however=nevertheless
    therefore=thus sequence=series store=keep stores=keeps stored=kept retrieve=fetch
    retrieves=fetches update=refresh updates=refreshes select=choose selected=chosen useful=helpful
    equivalent=equal possible=feasible result=outcome results=outcomes type=kind types=kinds
    operation=action operations=actions attribute=property attributes=properties dictionary=mapping
    dictionaries=mappings example=illustration implements=realizes implement=realize
    describes=explains describe=explain determine=decide determines=decides multiple=many
    requested=wanted complete=thorough message=notice helper=utility default=standard object=entity
    objects=entities
""")
OPPOSITES = _both_ways("""
    enabled=disabled enable=disable enables=disables True=False first=last before=after
    minimum=maximum min=max input=output inputs=outputs open=close opened=closed add=remove
    adds=removes added=removed forward=backward local=global start=end starts=ends top=bottom
    left=right increase=decrease increases=decreases upper=lower static=dynamic mutable=immutable
    positive=negative public=private internal=external load=save loads=saves loaded=saved
    send=receive sends=receives encode=decode encodes=decodes encoding=decoding compress=decompress
    include=exclude includes=excludes including=excluding success=failure valid=invalid always=never
    with=without more=fewer least=most greater=smaller higher=lesser smallest=largest
    shortest=longest same=different earlier=later previous=next parent=child row=column rows=columns
    source=target client=server inside=outside above=below old=new accept=reject accepts=rejects
    push=pop required=optional single=double synchronous=asynchronous sparse=dense signed=unsigned
    ascending=descending lowercase=uppercase horizontal=vertical fast=slow faster=slower safe=unsafe
    succeed=fail succeeds=fails absolute=relative unique=repeated read=write reads=writes
    reading=writing key=value keys=values empty=full present=absent some=all any=no
    possible=impossible supported=unsupported known=unknown equal=unequal directly=indirectly
    import=export begin=finish append=prepend lock=unlock register=unregister
    registered=unregistered sharded=replicated eager=lazy high=low early=late child=parent up=down
    once=twice normal=abnormal necessary=unnecessary explicitly=implicitly explicit=implicit
""")

ARTICLES = frozenset(["the", "a", "an"])
CLAUSES = frozenset(["if", "when", "unless", "because"])
AUXILIARIES = frozenset(["is", "are", "was", "were", "can", "will", "should", "must", "may", "does", "could", "would"])
DIRECTIONS = frozenset(["of", "to", "from", "into", "in", "on", "by", "than", "under", "over", "for", "as", "with"])
FUNCTION_WORDS = (ARTICLES | AUXILIARIES | DIRECTIONS | CLAUSES).union(
    ["and", "or", "not", "that", "this", "these", "it", "its", "be", "which", "at", "no", "all", "any", "each", "you", "we", "they", "how", "what", "has", "have", "used", "although", "while", "during", "given"]
)
