def page(sections, device):
    import json,dataclasses
    return json.dumps({k:[dataclasses.asdict(e) for e in v] for k,v in sections.items()})
